use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use everstep_transport::quic::HostPort;

use super::*;

/// The head of a request, in lower case.
fn head(mut stream: &TcpStream) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count > 0) {
        read.push(byte[0]);
    }
    String::from_utf8(read).expect("a head in ASCII").to_lowercase()
}

/// A service that gives the bytes of `answer` for each request's head, and closes the connection.
fn serve(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> HostPort {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("an address").into();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let bytes = answer(&head(&stream));
            let _ = (&stream).write_all(&bytes); // A client may have given up.
        }
    });
    place
}

fn reply(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn client(cloud: Cloud, place: HostPort) -> Client {
    Client::new(MetadataService { cloud, place })
}

/// Asks so often, one question after the other.
fn asked<const N: usize>(client: &mut Client) -> [Result<Fate, String>; N] {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut answers = std::array::from_fn(|_| Err(String::new()));
        for answer in &mut answers {
            let within = tokio::time::timeout(Duration::from_secs(5), client.ask());
            let told = within.await.unwrap_or(Err(ServiceError::Slow));
            *answer = told.map_err(|error| error.to_string());
        }
        answers
    })
}

#[test]
fn ec2_is_asked_with_a_token_that_is_drawn_anew_when_it_expires() {
    let tokens = AtomicU32::new(0);
    let place = serve(move |head| {
        let count = || tokens.load(Ordering::SeqCst);
        if head.starts_with("put /latest/api/token") && head.contains("ttl-seconds: 21600") {
            let drawn = tokens.fetch_add(1, Ordering::SeqCst) + 1;
            return reply(200, &format!("token-{drawn}"));
        }
        let path = head.starts_with("get /latest/meta-data/spot/instance-action ");
        // The first token expires at once, and the second one is good.
        match path && head.contains("x-aws-ec2-metadata-token: token-2") {
            true => reply(200, r#"{"action":"stop","time":"2026-11-23T12:02:00Z"}"#),
            false => reply(if count() > 1 { 404 } else { 401 }, ""),
        }
    });
    let [first, second] = asked(&mut client(Cloud::Aws, place));
    assert_eq!(first, Err("it answers with the HTTP status 401".into()));
    assert!(matches!(second, Ok(Fate::TakenBack { at_unix_s: Some(_) })), "{second:?}");
}

#[test]
fn compute_engine_is_asked_with_its_flavor() {
    let place = serve(|head| {
        let path = head.starts_with("get /computemetadata/v1/instance/preempted ");
        let is_right = path && head.contains("metadata-flavor: google");
        reply(if is_right { 200 } else { 403 }, "FALSE")
    });
    assert_eq!(asked(&mut client(Cloud::Gcp, place)), [Ok(Fate::Stays)]);
}

#[test]
fn azure_is_asked_for_the_machines_own_name_first() {
    let place = serve(|head| match head.contains("metadata: true\r\n") {
        true if head.starts_with("get /metadata/instance/compute/name?") => reply(200, "vm0\n"),
        true if head.starts_with("get /metadata/scheduledevents?api-version=2020-07-01 ") => {
            let event = r#"{"EventType":"Preempt","Resources":["vm0"],"EventStatus":"Started"}"#;
            reply(200, &format!(r#"{{"Events":[{event}]}}"#))
        }
        _ => reply(400, ""),
    });
    let told = asked(&mut client(Cloud::Azure, place));
    assert_eq!(told, [Ok(Fate::TakenBack { at_unix_s: None })]);
}

#[test]
fn whatever_a_service_sends_is_an_error_in_words() {
    let long = "x".repeat(1 << 20);
    let wide = format!("HTTP/1.1 200 OK\r\nx: {long}\r\n\r\nTRUE");
    let answers = [
        reply(500, "TRUE"),
        reply(200, "<html>TRUE</html>"),
        reply(200, &format!("TRUE{long}")),
        b"TRUE".to_vec(),
        Vec::new(),
        wide.into_bytes(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nTRUE".to_vec(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n".to_vec(),
    ];
    for bytes in answers {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let place = serve(move |_| bytes.clone());
        for cloud in [Cloud::Aws, Cloud::Gcp, Cloud::Azure] {
            let [told] = asked(&mut client(cloud, place.clone()));
            assert!(told.is_err(), "{cloud:?} {shown}: {told:?}");
        }
    }
}

#[test]
fn a_service_that_hangs_or_is_away_is_an_error_too() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place: HostPort = silent.local_addr().expect("an address").into();
    let [told] = asked(&mut client(Cloud::Gcp, place.clone()));
    assert_eq!(told, Err("it does not answer in time".into()));
    drop(silent);
    let [told] = asked(&mut client(Cloud::Gcp, place));
    let words = told.expect_err("no process listens");
    assert!(words.starts_with("it cannot be reached: "), "{words}");
}
