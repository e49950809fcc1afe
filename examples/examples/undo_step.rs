//! A machine that takes a step back in place, by the engine alone: a file is deleted and is there again,
//! and so is the process that was running. Then the undo is undone.
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
    CheckpointOptions, CreateOptions, Engine, EngineOptions, ExecOptions, MachineName,
    StartOptions, UndoOptions,
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
    let folder = tempfile::tempdir()?;
    let name: MachineName = format!("step-{}", std::process::id()).parse()?;
    let result = step_and_undo(&engine, &name, folder.path());
    if engine.machine(&name).is_ok() {
        engine.delete(&name, true)?;
    }
    result.map(|()| ExitCode::SUCCESS)
}

fn step_and_undo(engine: &Engine, name: &MachineName, folder: &Path) -> Result<(), Box<dyn Error>> {
    engine.create(CreateOptions {
        name: Some(name.clone()),
        ..CreateOptions::default()
    })?;
    engine.start(name, StartOptions::default())?;
    let setup = "echo precious > /root/file; sleep 1000 > /dev/null 2>&1 & echo $! > /run/pid";
    assert_eq!(sh(engine, name, setup)?, 0);

    let mut save = CheckpointOptions::default();
    save.store = Some(folder.join("history"));
    let before = engine.checkpoint(name, &save, &Silent)?;
    let mishap = "rm /root/file; kill $(cat /run/pid)";
    assert_eq!(sh(engine, name, mishap)?, 0);

    let undone = engine.undo(name, &UndoOptions::default(), &Silent)?;
    assert_eq!(undone.id, before.id);
    let whole = "grep -q precious /root/file && kill -0 $(cat /run/pid)";
    assert_eq!(sh(engine, name, whole)?, 0);

    // What was undone is a point, too.
    let kept = undone.kept.ok_or("the state that was left is kept")?;
    let mut redo = UndoOptions::default();
    redo.to = Some(kept.id);
    redo.discard = true;
    engine.undo(name, &redo, &Silent)?;
    assert_eq!(sh(engine, name, "test ! -e /root/file")?, 0);
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
