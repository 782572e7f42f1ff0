//! The bytes of notices never change under one number: a worker of another build on the same
//! machine reads them.

use std::path::Path;

use super::super::notice::{MEMORY_PROTOCOL, MemoryNotice};

/// Writes the golden file anew instead of comparing with it.
const WRITE: &str = "EVERSTEP_WRITE_GOLDEN";

/// Each kind of notice, with its bytes in hexadecimal.
fn lines() -> String {
    let notices = [
        ("open", MemoryNotice::Open { segment: 7, file: None }),
        ("opened", MemoryNotice::Opened { segment: 7, is_taken: false }),
        ("opened", MemoryNotice::Opened { segment: 7, is_taken: true }),
        ("close", MemoryNotice::Close { segment: 7 }),
        ("release", MemoryNotice::Release { segment: 7, at: 1 << 40 | 9 }),
    ];
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    notices.map(|(name, notice)| format!("{name} {}\n", hex(&notice.encode()))).concat()
}

#[test]
fn i23_the_bytes_of_notices_are_those_of_their_golden_file() {
    let path = format!("tests/golden/{}.txt", MEMORY_PROTOCOL.replace(' ', "-"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, lines()).expect("the folder is writable");
    }
    let golden = std::fs::read_to_string(&path).expect("each number has its golden file");
    assert!(
        lines() == golden,
        "the bytes of notices have changed: give MEMORY_PROTOCOL the next number. If no release \
         has spoken \"{MEMORY_PROTOCOL}\", run this test once with {WRITE}=1"
    );
    for line in golden.lines() {
        let (_, hex) = line.split_once(' ').expect("a name and bytes");
        let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
        let notice = MemoryNotice::decode(&bytes, &mut None).expect("a notice");
        assert_eq!(notice.encode()[..], bytes);
    }
}
