//! One function per decoder for fuzzers: any input must be refused or decode to a value whose own
//! encoding decodes to that value again. It may be another encoding, since unknown fields are skipped,
//! but for data there is only one.

use std::fmt::Debug;

use crate::codec::Wire;
use crate::frame::{FrameBuffer, FrameError, push_frame, read_message};
use crate::hello::{HELLO_BYTES, Hello};
use crate::message::{ExecInput, ExecOutput, LogOutput, Reply, Request};
use crate::tree::TreeItem;

fn message<M: Wire + PartialEq + Debug>(data: &[u8]) {
    let Ok(value) = M::decode_payload(data) else {
        return;
    };
    let own = value.encode_payload();
    match M::decode_payload(&own) {
        Ok(again) => assert_eq!(again, value),
        Err(error) => panic!("the encoding of {value:?} is refused: {error}"),
    }
    if value.as_data().is_some() {
        assert_eq!(own, data, "a second encoding of data");
    }
}

/// Decoder of [`Request`].
pub fn request(data: &[u8]) {
    message::<Request>(data);
}

/// Decoder of [`Reply`].
pub fn reply(data: &[u8]) {
    message::<Reply>(data);
}

/// Decoder of [`ExecInput`].
pub fn exec_input(data: &[u8]) {
    message::<ExecInput>(data);
}

/// Decoder of [`ExecOutput`].
pub fn exec_output(data: &[u8]) {
    message::<ExecOutput>(data);
}

/// Decoder of [`LogOutput`].
pub fn log_output(data: &[u8]) {
    message::<LogOutput>(data);
}

/// Decoder of [`TreeItem`].
pub fn tree_item(data: &[u8]) {
    message::<TreeItem>(data);
}

/// Decoder of [`Hello`].
pub fn hello(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<HELLO_BYTES>() else {
        return;
    };
    if let Ok(hello) = Hello::decode(*bytes) {
        assert_eq!(hello.encode(), *bytes);
    }
}

/// Both readers of frames: they must agree on every message of a stream and on its first fault.
pub fn frames(data: &[u8]) {
    let mut buffer = FrameBuffer::default();
    buffer.push(data);
    let mut rest = data;
    loop {
        let whole: Result<TreeItem, _> = read_message(&mut rest);
        let polled: Result<Option<TreeItem>, _> = buffer.next_message();
        match (whole, polled) {
            (Ok(a), Ok(Some(b))) => {
                assert_eq!(a, b);
                let mut frame = Vec::new();
                assert!(
                    push_frame(&a, &mut frame).is_ok(),
                    "a frame that was read fits a frame"
                );
            }
            // Both go on behind a message that is none.
            (Err(FrameError::Decode(_)), Err(FrameError::Decode(_))) => {}
            (Err(_), Ok(None) | Err(_)) => return,
            (whole, polled) => panic!("readers differ: {whole:?}, {polled:?}"),
        }
    }
}
