//! A coordinator refuses impossible files in words, and begins nothing anew over existing ones:
//! directories that are damaged, cut, mixed up or of another version, and tokens and certificates
//! that do not fit.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use everstep_coordinator::daemon::{CoordinatorError, CoordinatorOptions, Start, run};
use everstep_coordinator::http::ApiPort;
use everstep_transport::identity::{
    Authority, Credentials, EnrolmentError, JoinToken, Refusal, Role, TokenLimits,
};
use everstep_transport::protocol::{Message, OperatorCommand, Step};
use everstep_transport::quic::{EnrolError, enrol};
use tempfile::TempDir;

use crate::operator::Operator;
use crate::support::{Cluster, Node, anywhere, lines};

/// The files that a coordinator begins with, except those that every start makes anew.
const FILES: [&str; 7] = [
    "authority/authority.pem",
    "authority/authority.key",
    "coordinators",
    "coordinator.token",
    "join.token",
    "log.redb",
    "history.log",
];

/// Begins at an address where no process can listen. A start that fails there has found nothing
/// else wrong.
fn begin(dir: &Path, start: Start) -> CoordinatorError {
    let listen = SocketAddr::from(([192, 0, 2, 1], 1));
    let options = CoordinatorOptions { dir: dir.to_path_buf(), listen, start, http: None };
    run(options, &mut ApiPort::default(), |_| ()).expect_err("the address is not of this machine")
}

fn is_sound(dir: &Path) -> bool {
    matches!(begin(dir, Start::Again), CoordinatorError::Bind(_))
}

fn bootstrap() -> Start {
    Start::Bootstrap { ephemeral: true }
}

/// The directory of a founder that was killed in the middle of a run.
async fn left_by_a_run() -> TempDir {
    let mut cluster = Cluster::start().await;
    let workers = [cluster.worker().await, cluster.worker().await];
    tokio::join!(workers[0].enters(), workers[1].enters());
    workers[0].beat(lines(1..=7)).await;
    copy(cluster.take_member().killed().path())
}

fn copy(from: &Path) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("authority")).expect("made");
    FILES.iter().for_each(|file| put(&dir, file, &read(from, file)));
    dir
}

fn read(dir: &Path, file: &str) -> Vec<u8> {
    fs::read(dir.join(file)).expect("it is there")
}

fn put(dir: &TempDir, file: &str, bytes: &[u8]) {
    fs::write(dir.path().join(file), bytes).expect("written");
}

/// Every file in a directory, with a digest of its content.
fn content(dir: &Path) -> Vec<(PathBuf, u64)> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("read").path());
    let all = entries.flat_map(|path| match path.is_dir() {
        true => content(&path),
        false => vec![(path.clone(), digest(&fs::read(&path).expect("a file")))],
    });
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Forms in which a file may come back from a disk that has lost or changed some of it.
fn damages(whole: &[u8]) -> Vec<(String, Vec<u8>)> {
    let cut = |length: usize| (format!("cut to {length}"), whole[..length].to_vec());
    let flip = |at: usize| {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1 << (at % 7);
        (format!("byte {at}"), bytes)
    };
    let (length, step) = (whole.len(), whole.len().div_ceil(23));
    let cuts = [0, length / 2, length - 1].map(cut);
    cuts.into_iter().chain((0..length).step_by(step).map(flip)).collect()
}

#[tokio::test]
async fn a_directory_with_any_file_damaged_is_refused_and_the_file_is_named() {
    let whole = left_by_a_run().await;
    let checked = tokio::task::spawn_blocking(move || {
        assert!(is_sound(whole.path()));
        for file in FILES {
            let mut refusals = 0;
            for (damage, bytes) in damages(&read(whole.path(), file)) {
                let dir = copy(whole.path());
                put(&dir, file, &bytes);
                let error = begin(dir.path(), Start::Again);
                let words = error.to_string();
                // Not every byte matters, and the history gets from the log what it has lost. The
                // tests of the single files show that the rest is all there or refused.
                let goes_on = matches!(error, CoordinatorError::Bind(_));
                let name = file.split('/').next().expect("a name");
                assert!(goes_on || words.contains(name), "{file}, {damage}: {words}");
                refusals += usize::from(!goes_on);
            }
            assert!(refusals >= 2, "{file} may be anything");
        }
    });
    checked.await.expect("all are refused");
}

#[tokio::test]
async fn a_directory_with_a_file_of_another_cluster_is_refused() {
    let (ours, theirs) = (left_by_a_run().await, left_by_a_run().await);
    let checked = tokio::task::spawn_blocking(move || {
        for file in FILES {
            let dir = copy(ours.path());
            put(&dir, file, &read(theirs.path(), file));
            let error = begin(dir.path(), Start::Again);
            assert!(!matches!(error, CoordinatorError::Bind(_)), "{file} is another cluster's");
            let words = error.to_string();
            assert!(words.contains(&*dir.path().to_string_lossy()), "{file}: {words}");
        }
    });
    checked.await.expect("all are refused");
}

/// The files of another coordinator of the same cluster fit no other one.
#[tokio::test]
async fn a_directory_with_the_log_or_the_book_of_another_coordinator_is_refused() {
    let mut cluster = Cluster::idle(None).await;
    let first = cluster.take_member();
    let second = first.joined_by();
    crate::several::leader(&[&first], 2).await;
    let [ours, theirs] = [first.killed(), second.killed()].map(|dir| copy(dir.path()));
    let checked = tokio::task::spawn_blocking(move || {
        assert!(is_sound(ours.path()) && is_sound(theirs.path()));
        for file in ["log.redb", "coordinators"] {
            let dir = copy(ours.path());
            put(&dir, file, &read(theirs.path(), file));
            let error = begin(dir.path(), Start::Again);
            assert!(!matches!(error, CoordinatorError::Bind(_)), "{file} is another's");
            assert!(error.to_string().contains(&*dir.path().to_string_lossy()), "{file}: {error}");
        }
    });
    checked.await.expect("all are refused");
}

#[tokio::test]
async fn a_directory_without_one_of_its_files_is_refused_and_the_file_is_named() {
    let whole = left_by_a_run().await;
    let checked = tokio::task::spawn_blocking(move || {
        for file in FILES {
            let dir = copy(whole.path());
            fs::remove_file(dir.path().join(file)).expect("removed");
            let words = begin(dir.path(), Start::Again).to_string();
            assert!(words.contains(file), "{file}: {words}");
            let before = content(dir.path());
            let again = begin(dir.path(), bootstrap());
            assert!(matches!(again, CoordinatorError::AlreadyThere(_)), "{file}: {again}");
            assert_eq!(content(dir.path()), before, "nothing is touched without {file}");
        }
    });
    checked.await.expect("all are refused");
}

#[tokio::test]
async fn nothing_is_begun_where_anything_is_left_of_another() {
    let whole = left_by_a_run().await;
    let checked = tokio::task::spawn_blocking(move || {
        let token = String::from_utf8(read(whole.path(), "coordinator.token")).expect("text");
        let join = || Start::Join { token: token.clone(), coordinators: vec![anywhere().into()] };
        for file in FILES {
            for start in [bootstrap(), join()] {
                let dir = tempfile::tempdir().expect("a directory");
                fs::create_dir_all(dir.path().join(file).parent().expect("a folder"))
                    .expect("made");
                put(&dir, file, &read(whole.path(), file));
                let before = content(dir.path());
                let refused = begin(dir.path(), start.clone());
                let there = matches!(refused, CoordinatorError::AlreadyThere(_));
                assert!(there, "{file}, {start:?}: {refused}");
                assert_eq!(content(dir.path()), before, "{file}, {start:?}");
            }
        }
    });
    checked.await.expect("all are refused");
}

#[test]
fn an_empty_directory_is_not_begun_from_without_a_word() {
    let dir = tempfile::tempdir().expect("a directory");
    for path in [dir.path().to_path_buf(), dir.path().join("nowhere")] {
        let refused = begin(&path, Start::Again);
        assert!(matches!(refused, CoordinatorError::NothingThere(_)), "{refused}");
    }
    assert_eq!(content(dir.path()), []);
}

#[tokio::test]
async fn i23_files_of_a_later_or_an_earlier_format_say_so() {
    let whole = left_by_a_run().await;
    let checked = tokio::task::spawn_blocking(move || {
        // Files of format 1 state a digest of their layouts.
        let stated = [(9, 9), (0xbff5_2c02_7448_12bf, 1)];
        for (file, (stated, number)) in ["coordinators", "history.log"]
            .into_iter()
            .flat_map(|file| stated.map(|stated| (file, stated)))
        {
            let (dir, mut bytes) = (copy(whole.path()), read(whole.path(), file));
            bytes[8..16].copy_from_slice(&u64::to_le_bytes(stated));
            put(&dir, file, &bytes);
            let words = begin(dir.path(), Start::Again).to_string();
            let wanted = format!(
                "{file}: it has format {number}, and this build of Everstep reads format 2"
            );
            assert!(words.contains(&wanted), "{words}");
        }
    });
    checked.await.expect("all are refused");
}

/// The system refuses nothing to a user that may write everywhere.
#[tokio::test]
async fn a_directory_that_cannot_be_written_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let whole = left_by_a_run().await;
    let checked = tokio::task::spawn_blocking(move || {
        let dir = copy(whole.path());
        let set = |mode| fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode));
        set(0o500).expect("it is ours");
        let is_all_powerful = fs::write(dir.path().join("trial"), "").is_ok();
        let refused = begin(dir.path(), Start::Again);
        assert!(is_all_powerful || matches!(refused, CoordinatorError::File { .. }), "{refused}");
        set(0o700).expect("it is ours");
    });
    checked.await.expect("it is refused");
    // No user can write here.
    let nowhere = PathBuf::from("/proc/cluster");
    let options =
        CoordinatorOptions { dir: nowhere, listen: anywhere(), start: bootstrap(), http: None };
    let refused = tokio::task::spawn_blocking(|| run(options, &mut ApiPort::default(), |_| ()))
        .await
        .expect("no panic");
    let refused = refused.expect_err("it cannot be made");
    assert!(matches!(refused, CoordinatorError::File { .. }), "{refused}");
}

fn refusal<T>(enrolled: Result<T, EnrolError>) -> Refusal {
    match enrolled.map(drop) {
        Err(EnrolError::Enrolment(EnrolmentError::Refused(refusal))) => refusal,
        other => panic!("not refused but {other:?}"),
    }
}

#[tokio::test]
async fn a_token_that_is_wrong_old_or_used_up_is_refused_for_what_it_is() {
    let mut cluster = Cluster::idle(None).await;
    let (address, member) = (cluster.address, cluster.take_member());
    let authority = Authority::load(&member.path("authority")).expect("an authority");
    let (mut operator, members) = (Operator::of(&member), [member]);
    let mut create = async |limits: TokenLimits| {
        let token = JoinToken::create(&authority);
        let command = OperatorCommand::CreateToken(token.accepted(limits));
        operator.command(&members, command).await.expect("accepted");
        token
    };
    let ask = async |token: &JoinToken, role| enrol(address, token, role).await;

    let unknown = JoinToken::create(&authority);
    assert_eq!(refusal(ask(&unknown, Role::Worker).await), Refusal::UnknownToken);
    let old =
        create(TokenLimits { expires_unix_s: Some(1), ..TokenLimits::unlimited(Role::Worker) })
            .await;
    assert_eq!(refusal(ask(&old, Role::Worker).await), Refusal::Expired { unix_s: 1 });
    let once = create(TokenLimits { uses: Some(1), ..TokenLimits::unlimited(Role::Worker) }).await;
    ask(&once, Role::Worker).await.expect("the first");
    assert_eq!(refusal(ask(&once, Role::Worker).await), Refusal::UsedUp { uses: 1 });
    for (admits, asked) in [(Role::Worker, Role::Coordinator), (Role::Coordinator, Role::Worker)] {
        let token = create(TokenLimits::unlimited(admits)).await;
        assert_eq!(refusal(ask(&token, asked).await), Refusal::WrongRole { admits, asked });
    }
    let foreign = JoinToken::create(&Authority::create().expect("another authority"));
    let error = ask(&foreign, Role::Worker).await.map(drop).expect_err("another cluster's");
    assert!(error.to_string().contains("belongs to another cluster"), "{error}");
}

#[tokio::test]
async fn a_certificate_of_another_cluster_opens_no_link() {
    let cluster = Cluster::idle(None).await;
    let theirs = Cluster::idle(None).await;
    let credentials = Credentials::load(&theirs.path("operator")).expect("credentials");
    let error = Node::call(cluster.address, &credentials).await.map(drop).expect_err("foreign");
    assert!(error.to_string().contains("cluster"), "{error}");
}

/// A node with the keys can take any identity.
#[tokio::test]
async fn the_keys_of_the_cluster_are_for_coordinators_alone() {
    let cluster = Cluster::start().await;
    let operator = Credentials::load(&cluster.path("operator")).expect("credentials");
    for credentials in [cluster.enrol().await, operator] {
        let node = Node::connect(cluster.address, &credentials).await;
        node.say(Message::FetchKeys);
        node.say(Message::Hello { worker: None });
        node.say(Message::Watch { run: None, step: Step(0), event: 0 });
        let heard = node.hear().await;
        assert!(matches!(heard, Message::Welcome { .. } | Message::Update(_)), "{heard:?}");
    }
}

#[tokio::test]
async fn a_workers_token_makes_no_coordinator() {
    let cluster = Cluster::idle(None).await;
    let dir = tempfile::tempdir().expect("a directory");
    let token = fs::read_to_string(cluster.path("join.token")).expect("a token");
    let start = Start::Join { token, coordinators: vec![cluster.address.into()] };
    let path = dir.path().to_path_buf();
    let options = CoordinatorOptions { dir: path, listen: anywhere(), start, http: None };
    let refused = tokio::task::spawn_blocking(|| run(options, &mut ApiPort::default(), |_| ()))
        .await
        .expect("no panic");
    let words = refused.expect_err("it is for workers").to_string();
    assert!(words.contains("is for a node with the role worker, not coordinator"), "{words}");
    assert_eq!(content(dir.path()), []);
}
