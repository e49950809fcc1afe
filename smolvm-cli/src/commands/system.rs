//! Commands about the program and its host.

use std::io;
use std::process::ExitCode;

use serde_json::json;
use smolvm_engine::Engine;
use smolvm_engine::doctor::{Finding, Report};

use crate::args::CompletionsArgs;
use crate::complete;
use crate::failure::Failure;
use crate::output::{self, Object, Printer, Table, object};

/// `doctor`: succeeds exactly when some backend can run a machine here.
pub(crate) fn doctor(engine: &Engine, printer: &Printer) -> Result<ExitCode, Failure> {
    let report = engine.doctor();
    let mut table = Table::new(["WHAT", "WHICH", "GOOD", "FOUND"]);
    for finding in &report.findings {
        table.row([
            finding.subject.kind().to_owned(),
            finding.subject.name().to_owned(),
            output::yes_no(finding.good).to_owned(),
            finding.detail.clone(),
        ]);
    }
    printer.results(report.findings.iter().map(describe), table)?;
    if !printer.is_json() {
        advise(&report, printer)?;
    }
    Ok(if report.can_run() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(crate::failure::FAILED)
    })
}

fn describe(finding: &Finding) -> Object {
    object(json!({
        "what": finding.subject.kind(),
        "which": finding.subject.name(),
        "good": finding.good,
        "found": finding.detail,
        "mend": finding.mend,
    }))
}

fn advise(report: &Report, printer: &Printer) -> Result<(), Failure> {
    printer.line("")?;
    for finding in &report.findings {
        if let Some(mend) = &finding.mend {
            let (kind, name) = (finding.subject.kind(), finding.subject.name());
            printer.line(&format!("to mend {kind} {name}: {mend}"))?;
        }
    }
    printer.line(if report.can_run() {
        "machines can run on this host"
    } else {
        "no machine can run on this host"
    })
}

/// `completions`.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let script = complete::script(&args.shell.to_string());
    let script = script.unwrap_or_else(|| Err(io::ErrorKind::Unsupported.into()));
    output::data(&script.map_err(Failure::host("write the script"))?)?;
    Ok(ExitCode::SUCCESS)
}
