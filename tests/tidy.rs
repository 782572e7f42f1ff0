//! The house keeps its own rules: this test reads every file of the workspace.
//!
//! Each rule is a function from text to its problems, tested on small texts below, since a checker
//! that cannot fail proves nothing. There is no list of exceptions.

mod tidy {
    pub mod architecture;
    pub mod crates;
    pub mod layouts;
    pub mod names;
    pub mod prose;
    pub mod replicated_state;
    pub mod source;
}

use std::path::{Path, PathBuf};

use tidy::prose::Prose;
use tidy::source::Source;
use tidy::{architecture, crates, layouts, names, prose, replicated_state, source};

#[test]
fn every_source_file_is_tidy() {
    let problems: Vec<String> = sources().iter().flat_map(source::problems).collect();
    report(&problems);
}

#[test]
fn comments_have_named_subjects() {
    report(&prose::problems(&sources()));
}

#[test]
fn documents_have_named_subjects() {
    let documents = files(".md");
    assert!(documents.len() > 10, "{} documents: the walk missed some", documents.len());
    report(&prose::document_problems(&documents));
}

#[test]
fn a_name_has_one_meaning_in_a_crate() {
    report(&names::problems(&sources()));
}

/// I14: a build that words a sentence in another way comes to the same state.
#[test]
fn i14_the_replicated_state_makes_no_sentences() {
    report(&replicated_state::problems(&sources()));
}

/// I23: a layout that another version writes or reads does not change in silence.
#[test]
fn i23_layouts_of_messages_and_files_are_those_on_record() {
    let (now, path) = (layouts::text(&sources()), root().join("tests/tidy/layouts.txt"));
    if std::env::var_os("EVERSTEP_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &now).expect("it can be written");
    }
    let before = std::fs::read_to_string(&path).expect("it can be read");
    let changes = layouts::changes(&before, &now);
    assert!(
        changes.is_empty(),
        "layouts have changed. What a released build writes keeps its layout: give the message or \
         the file another number (ARCHITECTURE.md, Formats), and then set EVERSTEP_WRITE_GOLDEN=1 \
         to write tests/tidy/layouts.txt anew\n{}",
        changes.join("\n")
    );
}

#[test]
fn dependencies_between_crates_point_one_way() {
    let manifests = crates::manifests(root()).expect("the manifests can be read");
    report(&manifests.iter().flat_map(crates::problems).collect::<Vec<_>>());
}

#[test]
fn the_cores_deny_clocks_and_hash_maps_and_use_no_shell() {
    let sources = sources();
    let cores = source::cores(&sources);
    for home in ["worker/", "coordinator/"] {
        let there = cores.iter().any(|core| core.path.starts_with(home));
        assert!(there, "no module of {home} has {}", source::CORE_ATTRIBUTE);
    }
    report(&cores.iter().flat_map(|core| source::shell_in_core(core)).collect::<Vec<_>>());
}

#[test]
fn every_invariant_in_the_architecture_is_tested() {
    let path = root().join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{} must be there: {error}", path.display()));
    report(&architecture::problems(&text, &sources()));
    report(&architecture::unlisted_assertions(&text, &sources()));
}

#[test]
fn no_crate_is_built_for_which_there_is_an_advisory_and_no_mend() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("it can be read");
    let lists = |name: &str| lock.contains(&format!("\nname = \"{name}\"\n"));
    assert!(lists("raft"), "this test reads the wrong file");
    // RUSTSEC-2024-0437, RUSTSEC-2025-0057: crates that the published `raft` needs.
    let found: Vec<_> = ["protobuf", "fxhash"].into_iter().filter(|name| lists(name)).collect();
    assert!(found.is_empty(), "Cargo.lock lists {found:?}: see vendor/README.md");
}

/// Every `.rs` file of the workspace outside of `vendor/`.
fn sources() -> Vec<Source> {
    let sources = files(".rs");
    assert!(sources.len() > 40, "{} files: the walk missed the workspace", sources.len());
    sources
}

/// Every file of the workspace with this end of its name, outside of `vendor/`, tracked by git or
/// not, by path.
fn files(end: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    walk(root(), end, &mut paths);
    paths.sort();
    let read = |path: PathBuf| Source {
        text: std::fs::read_to_string(&path).expect("a source file is UTF-8"),
        path: path.strip_prefix(root()).expect("below the root").to_string_lossy().into(),
    };
    paths.into_iter().map(read).collect()
}

fn walk(directory: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory of the workspace") {
        let path = entry.expect("an entry of the workspace").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') && path != vendor() {
            walk(&path, end, found);
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
}

/// Third-party code keeps its own form: `vendor/README.md` lists it, with the reasons.
fn vendor() -> PathBuf {
    root().join("vendor")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn report(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn a_layout_is_that_of_fields_and_variants_in_order() {
    let of = |text: &str| {
        let path = "transport/src/message.rs".into();
        layouts::text(&[Source { path, text: text.into() }])
    };
    let message = "#[derive(Archive, Debug)]\npub enum Message { Feed(u64), Stop { why: String } }";
    let before = of(message);
    assert_eq!(before, "transport Message\n    Feed(u64)\n    Stop(why: String)\n");
    assert!(layouts::changes(&before, &of(&format!("/// Words.\n{message}"))).is_empty());
    let swapped =
        "#[derive(Archive)]\npub enum Message { Stop { why: String }, Feed(u64) }\nstruct Inner;";
    assert_eq!(layouts::changes(&before, &of(swapped)).len(), 2);
    assert_eq!(layouts::changes(&before, "").len(), 1);
}

#[test]
fn pronouns_and_semicolons_of_comments_are_counted() {
    let problems = |text: &str| {
        let mut prose = Prose::default();
        prose.read(text);
        prose.problems("here").len()
    };
    let who = concat!("w", "ho");
    assert_eq!(problems("/// The leader asks the worker.\nlet whole = 1; // a; b; c"), 0);
    assert_eq!(problems(&format!("/// {who} asks")), 1);
    assert_eq!(problems("// The leader asks; the worker answers."), 1);
    assert_eq!(problems(&format!("//! A; b, {who}.")), 2);
    assert_eq!(problems(&format!("/// ```\n/// let a = 1; // {who}\n/// ```\n/// Done.")), 0);
    let long = "/// word ".to_string() + &"word ".repeat(998);
    assert_eq!(problems(&format!("{long}{who}")), 0);
    assert_eq!(problems(&format!("{long}{who} {who}")), 1);
}

#[test]
fn documents_are_counted_without_their_code_and_tables() {
    let problems = |text: &str| {
        let mut prose = Prose::default();
        prose.read_document(text);
        prose.problems("here").len()
    };
    let who = concat!("w", "ho");
    assert_eq!(problems("The leader asks the worker."), 0);
    assert_eq!(problems(&format!("The leader asks; {who} answers?")), 2);
    assert_eq!(
        problems(&format!("Done.\n```sh\na; b {who}\n```\n| a; b | {who} |\n    c; d\n")),
        0
    );
    let text = format!("{who} asks; the leader answers.");
    let document = Source { path: "docs/a.md".into(), text: text.clone() };
    assert!(prose::document_problems(&[document]).is_empty(), "a short document");
    let document = Source { path: "docs/a.md".into(), text: text.repeat(2) };
    assert_eq!(prose::document_problems(&[document]).len(), 1);
}
