//! A machine that takes a step back, by the engine alone: a file is deleted, and is there again in a
//! machine made from before.
//!
//! ```text
//! cargo run --release -p examples --example undo_step
//! ```
//!
//! It works in `$SMOLVM_HOME`, which needs a kernel and an image, as `scripts/setup` prepares them.

use std::error::Error;
use std::io::sink;
use std::path::Path;
use std::process::ExitCode;

use smolvm_engine::image::Image;
use smolvm_engine::progress::Silent;
use smolvm_engine::{
    CheckpointOptions, CreateFromOptions, CreateOptions, Engine, EngineOptions, ExecOptions,
    MachineName, PointSource, StartOptions,
};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // This program is also the processes of its machines.
    if let Some(code) = smolvm_engine::process::run_if_asked(std::env::args_os().skip(1)) {
        return Ok(code);
    }
    let engine = Engine::open(EngineOptions::from_environment()?)?;
    if let Err(error) = Image::default_of(engine.home().root()) {
        conformance::skip::because("undo_step", &error.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let folder = tempfile::tempdir_in(engine.home().root())?;
    let before: MachineName = format!("step-{}", std::process::id()).parse()?;
    let after: MachineName = format!("step-{}-undone", std::process::id()).parse()?;
    let result = step_and_undo(&engine, &before, &after, folder.path());
    for name in [&before, &after] {
        if engine.machine(name).is_ok() {
            engine.delete(name, true)?;
        }
    }
    result.map(|()| ExitCode::SUCCESS)
}

fn step_and_undo(
    engine: &Engine,
    before: &MachineName,
    after: &MachineName,
    folder: &Path,
) -> Result<(), Box<dyn Error>> {
    engine.create(CreateOptions {
        name: Some(before.clone()),
        ..CreateOptions::default()
    })?;
    engine.start(before, StartOptions::default())?;
    assert_eq!(sh(engine, before, "echo precious > /root/file")?, 0);

    let mut save = CheckpointOptions::default();
    save.output = Some(folder.join("before.checkpoint"));
    save.store = Some(folder.join("history"));
    let point = engine.checkpoint(before, &save, &Silent)?;
    assert_eq!(sh(engine, before, "rm /root/file")?, 0);
    engine.delete(before, true)?;

    let output = point.output.ok_or("a checkpoint directory was asked for")?;
    let mut from = CreateFromOptions::new(PointSource::Directory(output));
    from.name = Some(after.clone());
    engine.create_from(from)?;
    engine.start(after, StartOptions::default())?;
    assert_eq!(sh(engine, after, "grep -q precious /root/file")?, 0);
    Ok(())
}

/// Runs a shell command in the machine and returns its exit code.
fn sh(engine: &Engine, name: &MachineName, command: &str) -> Result<u8, Box<dyn Error>> {
    let options = ExecOptions {
        argv: vec!["sh".into(), "-c".into(), command.into()],
        ..ExecOptions::default()
    };
    let session = engine.exec(name, options)?;
    Ok(session
        .run(None::<&[u8]>, &mut sink(), &mut sink())?
        .exit_code())
}
