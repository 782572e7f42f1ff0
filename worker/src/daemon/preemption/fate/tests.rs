use proptest::prelude::*;

use super::*;

const NOON: i64 = 1_795_435_200; // 2026-11-23 12:00 UTC

fn taken(at_unix_s: impl Into<Option<i64>>) -> Result<Fate, AnswerError> {
    Ok(Fate::TakenBack { at_unix_s: at_unix_s.into() })
}

#[test]
fn ec2_announces_an_interruption_with_its_time_and_else_finds_nothing() {
    let notice = br#"{"action": "terminate", "time": "2026-11-23T12:02:00Z"}"#;
    assert_eq!(of_aws(200, notice), taken(NOON + 120));
    let hibernates = br#"{"action":"hibernate","time":"2026-11-23T12:02:00Z","more":[1]}"#;
    assert_eq!(of_aws(200, hibernates), taken(NOON + 120));
    assert_eq!(of_aws(404, b"<html>Not Found</html>"), Ok(Fate::Stays));
    for status in [301, 401, 403, 500, 503] {
        assert_eq!(of_aws(status, notice), Err(AnswerError::Status(status)));
    }
    for nonsense in [
        "",
        "<html>",
        "{}",
        "null",
        r#"{"action":"terminate"}"#,
        r#"{"noticeTime":"2026-11-23T12:02:00Z"}"#, // a recommendation to rebalance
        r#"{"action":"dance","time":"2026-11-23T12:02:00Z"}"#,
        r#"{"action":"stop","time":"soon"}"#,
        r#"{"action":"stop","time":5}"#,
    ] {
        assert!(
            matches!(of_aws(200, nonsense.as_bytes()), Err(AnswerError::Body(_))),
            "{nonsense}"
        );
    }
}

#[test]
fn compute_engine_says_true_or_false() {
    assert_eq!(of_gcp(200, b"FALSE\n"), Ok(Fate::Stays));
    assert_eq!(of_gcp(200, b"TRUE"), taken(None));
    assert_eq!(of_gcp(404, b"TRUE"), Err(AnswerError::Status(404)));
    for nonsense in ["", "true", "TRUE TRUE", "<html>TRUE</html>"] {
        assert!(
            matches!(of_gcp(200, nonsense.as_bytes()), Err(AnswerError::Body(_))),
            "{nonsense}"
        );
    }
}

/// A document with one event, of these fields.
fn events(kind: &str, status: &str, machine: &str, not_before: &str) -> String {
    format!(
        r#"{{"DocumentIncarnation": 3, "Events": [{{"EventId": "602d", "EventType": "{kind}",
            "ResourceType": "VirtualMachine", "Resources": ["vm7", "{machine}"],
            "EventStatus": "{status}", "NotBefore": "{not_before}", "Description": ""}}]}}"#
    )
}

#[test]
fn azure_schedules_events_for_machines_by_name() {
    let noon = "Mon, 23 Nov 2026 12:00:00 GMT";
    let of = |document: &str| of_azure(200, document.as_bytes(), "vm0");
    for kind in ["Preempt", "Terminate", "Reboot", "Redeploy"] {
        assert_eq!(of(&events(kind, "Scheduled", "vm0", noon)), taken(NOON), "{kind}");
    }
    assert_eq!(of(&events("Preempt", "Started", "VM0", "")), taken(None));
    for quiet in [
        r#"{"DocumentIncarnation": 1, "Events": []}"#.to_string(),
        events("Preempt", "Scheduled", "vm1", noon),
        events("Freeze", "Scheduled", "vm0", noon),
        events("Preempt", "Completed", "vm0", noon),
    ] {
        assert_eq!(of(&quiet), Ok(Fate::Stays), "{quiet}");
    }
    for nonsense in ["", "<html>", "[]", r#"{"Events": 3}"#, r#"{"Events": [{}]}"#] {
        assert!(matches!(of(nonsense), Err(AnswerError::Body(_))), "{nonsense}");
    }
    let unclear = events("Preempt", "Scheduled", "vm0", "soon");
    assert!(matches!(of(&unclear), Err(AnswerError::Body(_))));
    assert_eq!(of_azure(500, b"", "vm0"), Err(AnswerError::Status(500)));
}

#[test]
fn the_earliest_of_several_events_counts() {
    let of = |times: &[&str]| {
        let event = |time: &&str| {
            format!(r#"{{"EventType":"Reboot","Resources":["vm0"],"NotBefore":"{time}"}}"#)
        };
        let all: Vec<String> = times.iter().map(event).collect();
        of_azure(200, format!(r#"{{"Events":[{}]}}"#, all.join(",")).as_bytes(), "vm0")
    };
    let (noon, later) = ("Mon, 23 Nov 2026 12:00:00 GMT", "Mon, 23 Nov 2026 12:15:00 GMT");
    assert_eq!(of(&[later, noon]), taken(NOON));
    assert_eq!(of(&[later, "", noon]), taken(None));
}

fn said(left_s: u64, leave_after_ms: u64) -> Option<FateChange> {
    let (left, leave_after) = (Duration::from_secs(left_s), Duration::from_millis(leave_after_ms));
    Some(FateChange::TakenBack { left, leave_after })
}

#[test]
fn a_notice_is_news_once_and_so_is_its_end() {
    let mut watch = FateWatch::new(Cloud::Aws);
    assert_eq!(watch.take(NOON, Fate::Stays), None);
    let notice = Fate::TakenBack { at_unix_s: Some(NOON + 120) };
    assert_eq!(watch.take(NOON, notice), said(120, 117_000));
    assert_eq!(watch.take(NOON + 2, notice), None);
    let later = Fate::TakenBack { at_unix_s: Some(NOON + 180) };
    assert_eq!(watch.take(NOON + 4, later), said(176, 173_000));
    assert_eq!(watch.take(NOON + 6, Fate::Stays), Some(FateChange::Withdrawn));
    assert_eq!(watch.take(NOON + 8, Fate::Stays), None);
}

/// The clocks of the cloud and of the machine may differ. A worker that left at once would cost the
/// run what only it holds.
#[test]
fn a_moment_that_has_passed_leaves_the_usual_time() {
    let mut watch = FateWatch::new(Cloud::Aws);
    for at in [NOON - 86_400, NOON, i64::MIN] {
        let notice = Fate::TakenBack { at_unix_s: Some(at) };
        assert_eq!(watch.take(NOON, notice), said(120, 117_000));
    }
    for cloud in [Cloud::Gcp, Cloud::Azure] {
        let unknown = Fate::TakenBack { at_unix_s: None };
        assert_eq!(FateWatch::new(cloud).take(NOON, unknown), said(30, 27_000));
    }
    let far = Fate::TakenBack { at_unix_s: Some(NOON + 86_401) };
    assert_eq!(FateWatch::new(Cloud::Aws).take(NOON, far), None, "no cloud tells so early");
    let soon = Fate::TakenBack { at_unix_s: Some(NOON + 2) };
    assert_eq!(watch.take(NOON, soon), said(2, 1_000));
}

proptest! {
    #[test]
    fn no_answer_ends_the_worker(
        status in 100_u16..600,
        body in any::<Vec<u8>>(),
        now in any::<i64>(),
    ) {
        for (cloud, fate) in [
            (Cloud::Aws, of_aws(status, &body)),
            (Cloud::Gcp, of_gcp(status, &body)),
            (Cloud::Azure, of_azure(status, &body, "vm0")),
        ] {
            let _ = fate.map(|fate| FateWatch::new(cloud).take(now, fate));
        }
    }
}
