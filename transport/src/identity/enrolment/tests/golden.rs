//! The bytes of an enrolment never change under one number: nodes of other builds read them.

use std::path::Path;

use super::*;
use crate::protocol::NodeName;
use crate::quic::ENROL_PROTOCOL;

/// Writes the golden file anew instead of comparing with it.
const WRITE: &str = "EVERSTEP_WRITE_GOLDEN";

/// A request for each role, and each answer, with their bytes in hexadecimal.
fn lines() -> String {
    let request = |role| {
        let request = Request { token: [3; 9], role, signing_request: vec![5; 7] };
        let request = rkyv::to_bytes::<Failure>(&request).expect("a request is plain data");
        ("request", [&[9; 64], request.as_slice()].concat())
    };
    let identity = Identity { role: Role::Worker, name: NodeName::parse("node-7").unwrap() };
    let (certificate, authority) = (vec![1, 2].into(), vec![3].into());
    let refusals = [
        Refusal::UnknownToken,
        Refusal::WrongSecret,
        Refusal::WrongRole { admits: Role::Operator, asked: Role::Worker },
        Refusal::Expired { unix_s: START },
        Refusal::UsedUp { uses: 8 },
        Refusal::Removed,
        Refusal::Undecided,
        Refusal::NotHere,
        Refusal::Garbled,
    ];
    let granted = ("granted", answer(&Ok(Granted { identity, certificate, authority })));
    let refused = refusals.map(|refusal| ("refused", answer(&Err(refusal))));
    let lines = Role::ALL.map(request).into_iter().chain([granted]).chain(refused);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    lines.map(|(name, bytes)| format!("{name} {}\n", hex(&bytes))).collect()
}

#[test]
fn i23_the_bytes_of_an_enrolment_are_those_of_its_golden_file() {
    let name = ENROL_PROTOCOL.replacen("everstep-enrol/", "enrol-", 1);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transport/golden");
    let path = folder.join(format!("{name}.txt"));
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, lines()).expect("the folder is writable");
    }
    let golden = std::fs::read_to_string(&path).expect("each number has its golden file");
    assert!(
        lines() == golden,
        "the bytes of an enrolment have changed: give ENROL_PROTOCOL the next number. If no \
         release has spoken {ENROL_PROTOCOL}, run this test once with {WRITE}=1"
    );
}
