//! SIGTERM ends a coordinator in good order. This test is alone in its process, which gets the
//! signal.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use everstep_coordinator::daemon::{CoordinatorOptions, Ended, Start, run};
use everstep_coordinator::http::{self, ApiPort};

#[test]
fn a_coordinator_stops_at_sigterm_and_can_be_started_again() {
    let dir = tempfile::tempdir().expect("a directory");
    for start in [Start::Bootstrap { ephemeral: false }, Start::Again] {
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let http = http::HttpOptions { listen: Some(listen), token: None, read_token: None };
        let http = Some(http);
        let options = CoordinatorOptions { dir: dir.path().to_path_buf(), listen, start, http };
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let result =
                run(options, &mut ApiPort::default(), |address| tell.send(address).expect("told"));
            end.send(result).expect("told");
        });
        told.recv().expect("the coordinator is ready");
        let process = std::process::id().to_string();
        let status = Command::new("kill").args(["-TERM", &process]).status().expect("kill");
        assert!(status.success());
        let result = ended.recv_timeout(Duration::from_secs(10)).expect("it stops");
        assert_eq!(result.expect("in good order"), Ended::Stopped);
    }
}
