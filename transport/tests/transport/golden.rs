//! The bytes of a protocol version never change: nodes of other builds read them.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use everstep_transport::protocol::version::PROTOCOL_VERSIONS;
use everstep_transport::protocol::{MemoryPlace, Message, codec, exemplars};

/// Writes the golden file anew instead of comparing with it.
const WRITE: &str = "EVERSTEP_WRITE_GOLDEN";

/// Each message of the examples and the headers of chunks, with their bytes in hexadecimal.
fn lines() -> String {
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a string takes everything");
            hex
        })
    };
    let messages = exemplars::all().into_iter();
    let messages =
        messages.map(|message| format!("{} {}\n", message.name(), hex(&codec::encode(&message))));
    let chunk = exemplars::chunk();
    let place = MemoryPlace { segment: 8, at: 1 << 40 | 9, digest: 1 << 56 | 10 };
    let chunks = [hex(&chunk.encode()), hex(&chunk.encode_with_place(&place))];
    messages.chain(chunks.map(|bytes| format!("chunk {bytes}\n"))).collect()
}

fn golden_file(version: u16) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transport/golden");
    folder.join(format!("protocol-{version}.txt"))
}

#[test]
fn i23_the_bytes_of_the_newest_protocol_version_are_those_of_its_golden_file() {
    let newest = PROTOCOL_VERSIONS.end();
    let path = golden_file(*newest);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, lines()).expect("the folder is writable");
    }
    let golden = std::fs::read_to_string(&path).expect("each version has its golden file");
    let (found, golden): (Vec<_>, Vec<_>) =
        (lines().lines().map(str::to_owned).collect(), golden.lines().collect());
    let changed = found.iter().filter(|line| !golden.contains(&line.as_str()));
    let changed: Vec<_> = changed.filter_map(|line| line.split(' ').next()).collect();
    assert!(
        changed.is_empty() && found.len() == golden.len(),
        "the bytes of protocol version {newest} have changed, of {changed:?} at least. A release \
         that spoke this version cannot read them: raise the end of PROTOCOL_VERSIONS. If no \
         release did, or if only the examples changed, run this test once with {WRITE}=1"
    );
}

#[test]
fn a_message_of_a_golden_file_is_read_as_the_message_that_it_was() {
    let golden = std::fs::read_to_string(golden_file(*PROTOCOL_VERSIONS.end())).expect("a file");
    let read: Vec<Message> = golden
        .lines()
        .filter_map(|line| line.split_once(' ').filter(|(name, _)| *name != "chunk"))
        .map(|(_, hex)| {
            let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
            let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
            codec::decode(&bytes).expect("a message")
        })
        .collect();
    assert_eq!(read, exemplars::all());
}
