//! Clouds take machines back: workers hear of it from metadata services, and leave in time.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};

use crate::world::{Launched, Program, SLOW, World};

/// The time that a notice gives, where it states one.
const NOTICE: Duration = Duration::from_secs(60);

/// The metadata service of a machine of one cloud. It asks for what that cloud asks for.
pub struct MetadataService {
    pub url: String,
    /// What it says of the machine: the status and the body.
    fate: Arc<Mutex<(u16, String)>>,
}

impl MetadataService {
    /// A service that says nothing at first.
    pub fn start(cloud: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let fate = Arc::new(Mutex::new(quiet(cloud)));
        let told = fate.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let head = head(&stream);
                let (status, body) = match preamble(cloud, &head) {
                    Some(answer) => answer,
                    None => told.lock().expect("its own").clone(),
                };
                let length = body.len();
                let answer =
                    format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{body}");
                let _ = (&stream).write_all(answer.as_bytes()); // The worker may have ended.
            }
        });
        Self { url, fate }
    }

    pub fn say(&self, fate: (u16, String)) {
        *self.fate.lock().expect("its own") = fate;
    }
}

/// The head of a request, in lower case.
fn head(mut stream: &TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count > 0) {
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("a head in ASCII").to_lowercase()
}

/// The answer to what a worker asks before, and to a request that lacks what the cloud demands.
fn preamble(cloud: &str, head: &str) -> Option<(u16, String)> {
    let (demanded, status) = match cloud {
        "aws" if head.starts_with("put /latest/api/token ") => return Some((200, "t0ken".into())),
        "aws" => ("x-aws-ec2-metadata-token: t0ken\r\n", 401),
        "gcp" => ("metadata-flavor: google\r\n", 403),
        _ if head.contains("/compute/name?") => return Some((200, "vm0".into())),
        _ => ("metadata: true\r\n", 400),
    };
    (!head.contains(demanded)).then(|| (status, String::new()))
}

/// What a cloud says while it lets a machine be.
fn quiet(cloud: &str) -> (u16, String) {
    match cloud {
        "aws" => (404, "<html>Not Found</html>".into()),
        "gcp" => (200, "FALSE".into()),
        _ => (200, r#"{"DocumentIncarnation": 1, "Events": []}"#.into()),
    }
}

/// What a cloud says when it takes the machine back.
pub fn notice(cloud: &str) -> (u16, String) {
    let at = OffsetDateTime::now_utc() + NOTICE;
    let body = match cloud {
        "aws" => {
            let time = at.replace_nanosecond(0).expect("a time").format(&Rfc3339);
            format!(r#"{{"action": "terminate", "time": "{}"}}"#, time.expect("words"))
        }
        "gcp" => "TRUE".into(),
        _ => format!(
            r#"{{"Events": [{{"EventType": "Preempt", "Resources": ["vm7", "vm0"],
                "EventStatus": "Scheduled", "NotBefore": "{}"}}]}}"#,
            at.format(&Rfc2822).expect("words")
        ),
    };
    (200, body)
}

/// A worker on a machine of this cloud, so slow that the run lasts until it is gone.
fn guest(world: &World, run: &Launched, cloud: &str, service: &MetadataService) -> Program {
    let flags = ["--preemption", cloud, "--metadata-url", &service.url];
    let mut command = world.joining(run, &flags);
    command.env("FAILPOINTS", SLOW);
    Program::start(command)
}

#[test]
fn a_worker_leaves_before_its_cloud_takes_the_machine_back() {
    let world = World::lasting(400);
    let run = world.launch(&["--workers", "2"]);
    run.until_step(3);
    for cloud in ["aws", "gcp", "azure"] {
        run.until_whole(2);
        let service = MetadataService::start(cloud);
        let guest = guest(&world, &run, cloud, &service);
        run.until_whole(3);
        service.say(notice(cloud));
        let told = Instant::now();
        let ended = guest.end();
        assert_eq!(ended.code, Some(143), "{ended:?}");
        assert!(told.elapsed() < Duration::from_secs(27), "{cloud}: {:?}", told.elapsed());
        let words = format!("the cloud takes this machine back cloud=\"{cloud}\"");
        assert!(ended.stderr.contains(&words), "no {words} in {ended:?}");
    }
    let run = run.complete();
    run.assert_survived(400);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!(run.report["steps_redone"], 0);
    let events = run.lines("events.jsonl");
    let preempted: Vec<&Value> =
        events.iter().filter(|event| event["event"] == "preempted").collect();
    let clouds: Vec<&Value> = preempted.iter().map(|event| &event["cloud"]).collect();
    assert_eq!(clouds, ["aws", "gcp", "azure"]);
    for (event, most) in preempted.iter().zip([60, 30, 60]) {
        let left = event["seconds_left"].as_u64().expect("a number");
        assert!((most - 10..=most).contains(&left), "{event}");
        let of_worker = |kind: &str| {
            let is_its = |it: &&Value| it["event"] == kind && it["worker"] == event["worker"];
            events.iter().filter(is_its).count()
        };
        assert_eq!((of_worker("draining"), of_worker("left"), of_worker("lost")), (1, 1, 0));
    }
}

/// Nothing that a service says or leaves unsaid costs the run a worker.
#[test]
fn a_service_that_lies_or_fails_disturbs_nothing() {
    let world = World::lasting(200);
    let run = world.launch(&["--workers", "1"]);
    run.until_step(3);
    let service = MetadataService::start("azure");
    service.say((200, "<html>welcome</html>".into()));
    let lied_to = guest(&world, &run, "azure", &service);
    let away = ["--preemption", "gcp", "--metadata-url", "http://127.0.0.1:9"];
    let alone = world.join_with(&run, &away);
    run.until_whole(3);
    for answer in [(500, String::new()), (200, "{}".into()), (404, "TRUE".into())] {
        service.say(answer);
        thread::sleep(Duration::from_secs(3)); // It is asked every two seconds.
        run.until_another_step();
    }
    lied_to.signal(crate::world::Signal::TERM); // The run is slow with it.
    assert_eq!(lied_to.end().code, Some(143));
    let run = run.complete();
    let ended = alone.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let complaint = "the cloud's metadata service says nothing of preemptions";
    assert_eq!(ended.stderr.matches(complaint).count(), 1, "{ended:?}");
    run.assert_survived(200);
    assert_eq!(run.hash(), world.undisturbed());
    assert!(run.lines("events.jsonl").iter().all(|event| event["event"] != "preempted"));
}
