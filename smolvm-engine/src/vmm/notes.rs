//! What the serial console said that explains an end, until it is told.

use std::sync::{Arc, Mutex, PoisonError};

use crate::channel::messages::ConsoleNote;

/// The first panic and the last lack of memory since they were last taken: a guest that says such things all the
/// time takes no memory with them.
#[derive(Default)]
pub(super) struct Notes {
    slots: Arc<Mutex<Slots>>,
}

#[derive(Default)]
struct Slots {
    panic: Option<String>,
    out_of_memory: Option<String>,
}

impl Notes {
    /// Takes notes in; `nudge` is called when there is something to be taken again.
    pub(super) fn listener(
        &self,
        nudge: impl Fn() + Send + 'static,
    ) -> Box<dyn Fn(ConsoleNote) + Send> {
        let slots = self.slots.clone();
        Box::new(move |note| {
            let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
            let empty = slots.panic.is_none() && slots.out_of_memory.is_none();
            match note {
                ConsoleNote::Panic(text) => {
                    slots.panic.get_or_insert(text);
                }
                ConsoleNote::OutOfMemory(text) => slots.out_of_memory = Some(text),
            }
            if empty {
                nudge();
            }
        })
    }

    /// All that is there.
    pub(super) fn take(&self) -> Vec<ConsoleNote> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let out_of_memory = slots.out_of_memory.take().map(ConsoleNote::OutOfMemory);
        let panic = slots.panic.take().map(ConsoleNote::Panic);
        out_of_memory.into_iter().chain(panic).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_guest_that_panics_all_the_time_leaves_one_note() {
        let (notes, nudges) = (Notes::default(), Arc::new(AtomicUsize::new(0)));
        let count = nudges.clone();
        let listener = notes.listener(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        for number in 0..1000 {
            listener(ConsoleNote::Panic(number.to_string()));
            listener(ConsoleNote::OutOfMemory(number.to_string()));
        }
        assert_eq!(nudges.load(Ordering::SeqCst), 1);
        let expected = [
            ConsoleNote::OutOfMemory("999".to_owned()),
            ConsoleNote::Panic("0".to_owned()),
        ];
        assert_eq!(notes.take(), expected);
        assert!(notes.take().is_empty());
        listener(ConsoleNote::Panic("again".to_owned()));
        assert_eq!(nudges.load(Ordering::SeqCst), 2);
    }
}
