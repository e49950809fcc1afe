//! What the emulated host says about its jobs, and the totals of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::totals::{HarnessCounter, Totals};

/// How a job tells its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lines of Rust's test harness, and the exit code.
    Harness,
    /// The exit code, reported as one test; lines may say what is skipped.
    Script,
}

/// What the reader of the stream shall show.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown {
    /// Bytes of a job, unchanged.
    Output(Vec<u8>),
    /// A line of our own.
    Remark(String),
}

/// Understands the stream of the virtio port: output of jobs between markers, each a line of its
/// own that begins with a token which no job knows. The newlines before and after a marker belong
/// to it, so the output of jobs is exact.
pub struct Reader {
    token: String,
    jobs: BTreeMap<String, Job>,
    current: Option<Current>,
    pending: Vec<u8>,
    line: Vec<u8>,
    /// Whether the marker of the end has come.
    ended: bool,
}

/// The job that runs.
struct Current {
    id: String,
    since: Instant,
}

struct Job {
    name: String,
    kind: Kind,
    counter: HarnessCounter,
    exit_code: Option<i32>,
}

/// Lines longer than this are not looked at for results.
const LINE_LIMIT_BYTES: usize = 1 << 20;

impl Reader {
    /// A reader for these jobs: identifier, name to show and kind.
    pub fn new(token: &str, jobs: impl IntoIterator<Item = (String, String, Kind)>) -> Self {
        let jobs = jobs
            .into_iter()
            .map(|(id, name, kind)| {
                let job = Job {
                    name,
                    kind,
                    counter: HarnessCounter::default(),
                    exit_code: None,
                };
                (id, job)
            })
            .collect();
        Self {
            token: token.to_owned(),
            jobs,
            current: None,
            pending: Vec::new(),
            line: Vec::new(),
            ended: false,
        }
    }

    /// Takes bytes of the stream, returns what to show now.
    pub fn receive(&mut self, bytes: &[u8]) -> Vec<Shown> {
        self.pending.extend_from_slice(bytes);
        let mut shown = Vec::new();
        let marker = format!("\n{} ", self.token).into_bytes();
        loop {
            let Some(start) = find(&self.pending, &marker) else {
                let kept = self.pending.len() - overlap(&self.pending, &marker);
                let output: Vec<u8> = self.pending.drain(..kept).collect();
                self.output(output, &mut shown);
                return shown;
            };
            let after = start + marker.len();
            let Some(length) = self.pending[after..].iter().position(|byte| *byte == b'\n') else {
                return shown;
            };
            let output: Vec<u8> = self.pending.drain(..start).collect();
            self.output(output, &mut shown);
            let line: Vec<u8> = self.pending.drain(..=marker.len() + length).collect();
            let text = String::from_utf8_lossy(&line[marker.len()..]).into_owned();
            self.marker(&text, &mut shown);
        }
    }

    /// Takes the end of the stream, returns what was held back because it looked like the
    /// beginning of a marker.
    pub fn finish(&mut self) -> Vec<Shown> {
        let mut shown = Vec::new();
        let rest = std::mem::take(&mut self.pending);
        self.output(rest, &mut shown);
        shown
    }

    fn output(&mut self, bytes: Vec<u8>, shown: &mut Vec<Shown>) {
        for byte in &bytes {
            if *byte == b'\n' {
                self.end_line();
            } else if self.line.len() < LINE_LIMIT_BYTES {
                self.line.push(*byte);
            }
        }
        if !bytes.is_empty() {
            shown.push(Shown::Output(bytes));
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        if let Some(job) = self.current_job() {
            job.counter.line(&line);
        }
    }

    fn current_job(&mut self) -> Option<&mut Job> {
        let current = self.current.as_ref()?;
        self.jobs.get_mut(&current.id)
    }

    fn marker(&mut self, text: &str, shown: &mut Vec<Shown>) {
        let mut words = text.split_whitespace();
        let (word, id) = (words.next(), words.next().unwrap_or_default());
        match word {
            Some("start") => {
                self.current = Some(Current {
                    id: id.to_owned(),
                    since: Instant::now(),
                });
            }
            Some("alive") => {}
            Some("done") => {
                self.end_line();
                self.current = None;
                let code = words.next().and_then(|code| code.parse().ok());
                if let Some(job) = self.jobs.get_mut(id) {
                    job.exit_code = code;
                    if let Some(remark) = job.remark() {
                        shown.push(Shown::Remark(remark));
                    }
                }
            }
            Some("left") => {
                let name = self.jobs.get(id).map_or(id, |job| job.name.as_str());
                shown.push(Shown::Remark(format!("note: {name} left processes behind")));
            }
            Some("end") => self.ended = true,
            _ => shown.push(Shown::Remark(format!("note: unknown marker {text:?}"))),
        }
    }

    /// For how long the job has run that runs now.
    pub fn current_for(&self) -> Option<Duration> {
        self.current.as_ref().map(|job| job.since.elapsed())
    }

    /// The emulated host will be started once more, for the jobs that have no exit code yet:
    /// forgets what they said. Returns the identifiers of the jobs that ended, and the name of the
    /// one that ran.
    pub fn start_again(&mut self) -> (Vec<String>, Option<String>) {
        let interrupted = self.current_job().map(|job| job.name.clone());
        self.current = None;
        self.pending.clear();
        self.line.clear();
        let mut done = Vec::new();
        for (id, job) in &mut self.jobs {
            match job.exit_code {
                Some(_) => done.push(id.clone()),
                None => job.counter = HarnessCounter::default(),
            }
        }
        (done, interrupted)
    }

    /// Whether the emulated host went through all its jobs.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The exit code of a job, if it ended.
    pub fn exit_code(&self, id: &str) -> Option<i32> {
        self.jobs.get(id)?.exit_code
    }

    /// The totals of all jobs; one that did not end counts as a failed test.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for job in self.jobs.values() {
            totals.add(job.totals());
        }
        totals
    }

    /// Names of jobs that failed or did not end, with how.
    pub fn failures(&self) -> Vec<String> {
        self.jobs
            .values()
            .filter(|job| job.totals().failed > 0)
            .map(|job| match job.exit_code {
                Some(code) => format!("{} (exit code {code})", job.name),
                None => format!("{} (did not end)", job.name),
            })
            .collect()
    }
}

impl Job {
    fn totals(&self) -> Totals {
        let mut totals = match self.kind {
            Kind::Harness => self.counter.totals(),
            Kind::Script => return self.counter.script(self.exit_code),
        };
        if self.exit_code != Some(0) {
            totals.failed = totals.failed.max(1);
        }
        totals
    }

    fn remark(&self) -> Option<String> {
        let code = self.exit_code.unwrap_or(-1);
        match self.kind {
            Kind::Script if code == 0 => Some(format!("test {} ... ok", self.name)),
            Kind::Script if self.totals().failed == 0 => {
                Some(format!("test {} ... skipped", self.name))
            }
            Kind::Script => Some(format!("test {} ... FAILED (exit code {code})", self.name)),
            Kind::Harness if code != 0 && self.counter.totals().failed == 0 => {
                Some(format!("test {} ... FAILED (exit code {code})", self.name))
            }
            Kind::Harness => None,
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|bytes| bytes == needle)
}

/// How many bytes at the end of `haystack` may be the beginning of `needle`.
fn overlap(haystack: &[u8], needle: &[u8]) -> usize {
    (1..needle.len().min(haystack.len() + 1))
        .rev()
        .find(|length| haystack.ends_with(&needle[..*length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> Reader {
        Reader::new(
            "@@t",
            [
                ("1".to_owned(), "unit".to_owned(), Kind::Harness),
                ("2".to_owned(), "story".to_owned(), Kind::Script),
            ],
        )
    }

    const STREAM: &[u8] = b"\n@@t start 1\nrunning 4 tests\ntest a ... \nskipped: a: no KVM\nok\n\
        test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out\n\
        \n@@t done 1 101\n\n@@t start 2\nno newline\n@@t done 2 0\n\n@@t left 2\n\n@@t end\n";

    fn text(shown: &[Shown]) -> String {
        shown
            .iter()
            .map(|part| match part {
                Shown::Output(bytes) => String::from_utf8(bytes.clone()).unwrap(),
                Shown::Remark(line) => format!("<{line}>"),
            })
            .collect()
    }

    #[test]
    fn counts_and_shows_the_same_however_the_stream_is_cut() {
        for cut in 1..STREAM.len() {
            let mut reader = reader();
            let mut shown = Vec::new();
            for piece in STREAM.chunks(cut) {
                shown.extend(reader.receive(piece));
            }
            assert!(reader.ended());
            assert_eq!(reader.totals().to_string(), "2 passed, 1 failed, 2 skipped");
            assert_eq!(reader.exit_code("2"), Some(0));
            assert_eq!(reader.failures(), ["unit (exit code 101)"]);
            let text = text(&shown);
            assert!(text.starts_with("running 4 tests\n"), "{text}");
            assert!(
                text.ends_with("no newline<test story ... ok><note: story left processes behind>"),
                "{text}"
            );
        }
    }

    #[test]
    fn jobs_that_never_end_are_failures() {
        let mut reader = reader();
        reader.receive(b"\n@@t start 1\ntest result: ok. 7 passed; 0 failed; 0 ignored\n");
        assert_eq!(text(&reader.finish()), "\n");
        assert!(!reader.ended());
        assert_eq!(reader.totals().to_string(), "7 passed, 2 failed, 0 skipped");
    }

    #[test]
    fn what_an_interrupted_job_said_is_not_counted_twice() {
        let mut reader = reader();
        let (before, after) = STREAM.split_at(find(STREAM, b"\n@@t done 1").unwrap());
        reader.receive(before);
        let (done, interrupted) = reader.start_again();
        assert_eq!((done, interrupted), (vec![], Some("unit".to_owned())));
        reader.receive(before);
        reader.receive(after);
        assert_eq!(reader.totals().to_string(), "2 passed, 1 failed, 2 skipped");
        assert_eq!(
            reader.start_again(),
            (vec!["1".to_owned(), "2".to_owned()], None)
        );
        assert_eq!(reader.totals().to_string(), "2 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn a_sign_of_life_is_no_output() {
        let mut reader = reader();
        let shown = reader.receive(b"\n@@t start 2\nno new\n@@t alive\nline\n@@t done 2 0\n");
        assert_eq!(text(&shown), "no newline<test story ... ok>");
    }

    #[test]
    fn a_crash_after_good_results_is_a_failure() {
        let mut reader = reader();
        reader.receive(
            b"\n@@t start 1\ntest result: ok. 7 passed; 0 failed; 0 ignored\n\n@@t done 1 139\n",
        );
        reader.receive(b"\n@@t start 2\n\n@@t done 2 0\n");
        assert_eq!(reader.totals().to_string(), "8 passed, 1 failed, 0 skipped");
    }
}
