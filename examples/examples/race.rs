//! One machine, eight attempts that go on from the same moment at once, the best is kept.
//!
//! ```text
//! cargo run --release -p examples --example race
//! ```
//!
//! It works in `$SMOLVM_HOME`, which needs a kernel and an image, as `scripts/setup` prepares them.

use std::error::Error;
use std::process::ExitCode;

use smolvm_engine::image::Image;
use smolvm_engine::progress::Silent;
use smolvm_engine::{
    BranchOptions, CreateOptions, Engine, EngineOptions, ExecOptions, MachineName, StartOptions,
};

const ATTEMPTS: usize = 8;
/// What all attempts share: towns, made once.
const PREPARE: &str =
    "import random; print([(random.random(), random.random()) for _ in range(40)])";
/// An attempt: a short way through all of them. It prints how long that is.
const ATTEMPT: &str = "import math, random
towns = eval(open('/root/towns').read())
length = lambda way: sum(math.dist(a, b) for a, b in zip(way, way[1:]))
print(min(length(random.sample(towns, len(towns))) for _ in range(200)))";

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<ExitCode> {
    // This program is also the processes of its machines.
    if let Some(code) = smolvm_engine::process::run_if_asked(std::env::args_os().skip(1)) {
        return Ok(code);
    }
    let engine = Engine::open(EngineOptions::from_environment()?)?;
    if let Err(error) = Image::default_of(engine.home().root()) {
        conformance::skip::because("race", &error.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let source: MachineName = format!("race-{}", std::process::id()).parse()?;
    let attempts = BranchOptions::numbered(source.as_str(), ATTEMPTS)?;
    let result = race(&engine, &source, &attempts);
    for name in attempts.names.iter().chain([&source]) {
        if engine.machine(name).is_ok() {
            engine.delete(name, true)?;
        }
    }
    result.map(|()| ExitCode::SUCCESS)
}

fn race(engine: &Engine, source: &MachineName, attempts: &BranchOptions) -> Outcome<()> {
    engine.create(CreateOptions {
        name: Some(source.clone()),
        ..CreateOptions::default()
    })?;
    engine.start(source, StartOptions::default())?;
    sh(
        engine,
        source,
        &format!("python3 -c '{PREPARE}' > /root/towns"),
    )?;
    engine.branch(source, attempts, &Silent)?;
    engine.delete(source, true)?;

    let attempt = format!("python3 -c \"{ATTEMPT}\" | tee /root/length");
    let lengths: Vec<f64> = std::thread::scope(|scope| {
        let attempt = &attempt;
        let run = move |name| Outcome::Ok(sh(engine, name, attempt)?.trim().parse()?);
        let start = |name| scope.spawn(move || run(name));
        let running: Vec<_> = attempts.names.iter().map(start).collect();
        let end = running.into_iter().map(|thread| thread.join());
        end.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Outcome<_>>()
    })?;
    let ranked = lengths.iter().zip(&attempts.names);
    let (length, best) = ranked
        .min_by(|a, b| a.0.total_cmp(b.0))
        .ok_or("no attempt")?;
    for loser in attempts.names.iter().filter(|name| *name != best) {
        engine.delete(loser, true)?;
    }
    let kept: f64 = sh(engine, best, "cat /root/length")?.trim().parse()?;
    assert_eq!(kept, *length, "it is the machine of the best attempt");
    Ok(())
}

/// Runs a shell command in a machine; what it printed.
fn sh(engine: &Engine, name: &MachineName, command: &str) -> Outcome<String> {
    let options = ExecOptions {
        argv: vec!["sh".into(), "-c".into(), command.into()],
        ..ExecOptions::default()
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = engine
        .exec(name, options)?
        .run(None::<&[u8]>, &mut out, &mut err)?;
    match outcome.exit_code() {
        0 => Ok(String::from_utf8(out)?),
        code => Err(format!("{command}: {code}: {}", String::from_utf8_lossy(&err)).into()),
    }
}
