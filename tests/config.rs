//! The configuration and the command line: which source wins, and the refusals with their words.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use everstep::cli::Overrides;
use everstep::config::{ConfigError, Resolved, ValueSource, read, resolve};
use everstep_transport::protocol::checkpoint::OnFailure;
use everstep_transport::protocol::run::{
    LossUnit, OptionValue, Precision, ScheduleKind, TargetUnit, TokenType,
};
use everstep_transport::protocol::{Encoding, Rounding};
use everstep_worker::builtin;
use everstep_worker::registry::Registry;

/// The example of the documentation, every key.
const EVERYTHING: &str = r#"
[run]
name = "rust-code"
seed = 7
steps = 300
min_workers = 2
start_workers = 4
[model]
kind = "mlp"
layers = 3
heads = 2
width = 96
context = 16
vocabulary = 50257
unit = "sample"
loss_unit = "none"
[data]
kind = "tokens"
path = "tokens/"
validation = 0.1
validation_every = 25
dtype = "u16"
[batch]
data_shards = 6
micro_batch = 5
accumulate = 2
[optimizer]
kind = "lion"
learning_rate = 3e-4
warmup_steps = 10
schedule = "linear"
weight_decay = 0
clip_norm = "none"
betas = [0.8, 0.9]
[wire]
all_gather = "bf16"
rounding = "stochastic"
[redundancy]
copies = 3
[checkpoint]
path = "/srv/checkpoints"
every = 50
keep = 2
keep_every = 500
on_failure = "pause"
"#;

fn resolved(text: &str, flags: Overrides) -> Result<Resolved, ConfigError> {
    resolve(Some((Path::new("run.toml"), text)), &flags, &registry())
}

/// A program with a data set of its own.
fn registry() -> Registry {
    builtin::registry()
        .model("rings", |_, _| Err("never built here".into()))
        .dataset("rings", |_| Err("never built here".into()))
}

fn refused(text: &str) -> ConfigError {
    resolved(text, Overrides::default()).expect_err(text)
}

fn at_line(line: usize) -> ValueSource {
    ValueSource::Line(PathBuf::from("run.toml"), line)
}

#[test]
fn without_a_file_a_small_gpt_is_trained_on_the_default_text() {
    let Resolved { run, workers, notes, .. } =
        resolve(None, &Overrides::default(), &registry()).unwrap();
    assert_eq!((run.name.as_str(), run.seed, run.steps), ("default", 1, 400));
    assert_eq!((workers, run.start_workers, run.min_workers, run.copies), (2, 2, 1, 2));
    let model = run.model;
    assert_eq!((model.kind.as_str(), model.layers, model.heads), ("gpt", 4, 4));
    assert_eq!((model.width, model.context, model.vocabulary), (128, 128, 256));
    assert_eq!((run.data.kind.as_str(), run.data.path.as_str()), ("text", ""));
    let batch = run.batch;
    assert_eq!((batch.data_shards, batch.micro_batch, batch.accumulate), (8, 4, 1));
    let optimizer = run.optimizer;
    assert_eq!(
        (&*optimizer.kind, optimizer.schedule, optimizer.warmup_steps, optimizer.clip_norm),
        ("adamw", ScheduleKind::Cosine, 20, Some(1.0))
    );
    assert_eq!((optimizer.betas, optimizer.epsilon, optimizer.momentum), (None, None, None));
    assert_eq!((optimizer.learning_rate, optimizer.weight_decay), (1e-3, 0.1));
    assert_eq!((run.all_gather, run.rounding), (Encoding::F32, Rounding::Nearest));
    assert!(notes.is_empty());
}

#[test]
fn every_key_of_the_file_is_read() {
    let Resolved { run, workers, notes, .. } = resolved(EVERYTHING, Overrides::default()).unwrap();
    assert_eq!((run.name.as_str(), run.seed, run.steps), ("rust-code", 7, 300));
    assert_eq!((workers, run.start_workers, run.min_workers, run.copies), (4, 4, 2, 3));
    let model = run.model;
    assert_eq!((model.kind.as_str(), model.layers, model.heads), ("mlp", 3, 2));
    assert_eq!((model.width, model.context, model.vocabulary), (96, 16, 50_257));
    assert_eq!((model.unit, model.loss_unit), (TargetUnit::Sample, LossUnit::None));
    assert_eq!((run.data.path.as_str(), run.data.validation), ("tokens/", 0.1));
    assert_eq!(run.data.validation_every, 25);
    assert_eq!((run.data.kind.as_str(), run.data.dtype), ("tokens", Some(TokenType::U16)));
    let batch = run.batch;
    assert_eq!((batch.data_shards, batch.micro_batch, batch.accumulate), (6, 5, 2));
    let optimizer = run.optimizer;
    assert_eq!(
        (&*optimizer.kind, optimizer.schedule, optimizer.warmup_steps, optimizer.clip_norm),
        ("lion", ScheduleKind::Linear, 10, None)
    );
    assert_eq!(optimizer.betas, Some([0.8, 0.9]));
    assert_eq!((optimizer.learning_rate, optimizer.weight_decay), (3e-4, 0.0));
    assert_eq!((run.all_gather, run.rounding), (Encoding::Bf16, Rounding::Stochastic));
    let checkpoint = run.checkpoint.expect("checkpoints");
    assert_eq!((&*checkpoint.path, checkpoint.every), ("/srv/checkpoints", 50));
    assert_eq!((checkpoint.keep, checkpoint.keep_every), (2, 500));
    assert_eq!(checkpoint.on_failure, OnFailure::Pause);
    assert!(notes.is_empty());
}

#[test]
fn a_run_has_checkpoints_only_where_the_file_asks_for_them() {
    let read = |text| resolved(text, Overrides::default()).unwrap().run.checkpoint;
    assert_eq!(read(""), None);
    assert_eq!(read("[checkpoint]"), None);
    assert_eq!(read("[checkpoint]\nevery = 0\nkeep = 7"), None);
    let checkpoint = read("[checkpoint]\nevery = 5").expect("checkpoints");
    assert_eq!((&*checkpoint.path, checkpoint.keep, checkpoint.keep_every), ("checkpoints", 3, 0));
    assert_eq!(checkpoint.on_failure, OnFailure::Continue);
    let error = refused("[checkpoint]\npath = \"/srv\"");
    assert_eq!(error.place, ValueSource::File(PathBuf::from("run.toml")));
    assert!(error.to_string().contains("checkpoint.every is not set"), "{error}");
}

#[test]
fn a_relative_store_is_one_of_the_working_directory() {
    let store = |path: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, format!("[checkpoint]\nevery = 5\n{path}")).unwrap();
        let read = read(Some(file.path()), &Overrides::default(), &registry()).unwrap();
        read.run.checkpoint.unwrap().path
    };
    let here = std::env::current_dir().unwrap().join("a/b").to_str().unwrap().to_string();
    assert_eq!(store("path = \"a/b\""), here);
    assert_eq!(store("path = \"/srv/a\""), "/srv/a");
    assert_eq!(store("path = \"az://container/a\""), "az://container/a");
    assert_eq!(store(""), "checkpoints", "the launcher knows the run's own directory");
}

#[test]
fn blocks_are_computed_again_only_where_the_file_asks_for_it() {
    let recompute = |text| resolved(text, Overrides::default()).unwrap().run.model.recompute;
    assert!(recompute("[model]\nrecompute = true"));
    assert!(!recompute("[model]\nkind = \"mlp\"\nrecompute = false"));
    assert!(!recompute(""));
}

#[test]
fn a_run_says_how_long_a_device_may_take_and_how_far_the_rate_falls() {
    let read = |text| {
        let run = resolved(text, Overrides::default()).unwrap().run;
        (run.hang_after_ms, run.optimizer.floor)
    };
    assert_eq!(read(""), (10_000, 0.1));
    assert_eq!(read("[optimizer]\nfloor = 0.0\n[redundancy]\nhang_after = \"2m\""), (120_000, 0.0));
}

#[test]
fn settings_of_an_optimizer_are_read_and_belong_to_their_rule() {
    let read = |text: &str| resolved(text, Overrides::default()).unwrap().run.optimizer;
    let adamw = read("[optimizer]\nbetas = [0.5, 1e-1]\nepsilon = 1e-6");
    assert_eq!((adamw.betas, adamw.epsilon), (Some([0.5, 0.1]), Some(1e-6)));
    assert_eq!(read("[optimizer]\nkind = \"sgd\"\nmomentum = 0").momentum, Some(0.0));
}

#[test]
fn options_are_free_and_keep_their_types() {
    let text = "
        [model]
        kind = 'rings'
        [model.options]
        leak = 0.5
        a-b = 'x'
        tied = true
        count = 0x10
        [run]
        steps = 3
    ";
    let options = resolved(text, Overrides::default()).unwrap().run.model.options;
    let expected = [
        ("a-b", OptionValue::Text("x".into())),
        ("count", OptionValue::Integer(16)),
        ("leak", OptionValue::Number(0.5)),
        ("tied", OptionValue::Flag(true)),
    ];
    assert_eq!(options.0, expected.map(|(name, value)| (name.to_string(), value)).into());
    let text = "[model]\nkind = \"rings\"\noptions = { leak = 1 }";
    let options = resolved(text, Overrides::default()).unwrap().run.model.options;
    assert_eq!(options.integer("leak"), Ok(Some(1)));
}

#[test]
fn a_flag_wins_over_the_file() {
    let flags = Overrides {
        workers: Some(3),
        steps: Some(9),
        data: Some("other.txt".into()),
        seed: Some(u64::MAX),
        copies: Some(1),
        ..Overrides::default()
    };
    let resolved = resolved(EVERYTHING, flags).unwrap();
    let run = resolved.run;
    assert_eq!((resolved.workers, run.start_workers), (3, 4));
    assert_eq!((run.steps, run.seed, run.copies), (9, u64::MAX, 1));
    assert_eq!(run.data.path, "other.txt");
    assert!(resolved.notes[0].starts_with("the run starts when 4 workers are there: 3 start here"));
}

#[test]
fn a_data_set_registered_under_the_models_name_goes_with_that_model() {
    let text = "[model]\nkind = \"rings\"";
    assert_eq!(resolved(text, Overrides::default()).unwrap().run.data.kind, "rings");
    let text = "[model]\nkind = \"rings\"\n[data]\nkind = \"text\"";
    assert_eq!(resolved(text, Overrides::default()).unwrap().run.data.kind, "text");
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_nearest_known_key() {
    for (text, line, nearest) in [
        ("[run]\nsteps = 3\nsede = 1", 3, "did you mean \"run.seed\"?"),
        ("[model]\n\nhead = 3", 3, "did you mean \"model.heads\"?"),
        ("model.layer = 3", 1, "did you mean \"model.layers\"?"),
        ("[run]\nlearning_rate = 1e-3", 2, "did you mean \"optimizer.learning_rate\"?"),
        ("# a comment\nsteps = 3", 2, "did you mean \"run.steps\"?"),
        ("[modle]\nlayers = 3", 1, "did you mean [model]?"),
        ("[run]\n[checkpoints]", 2, "did you mean [checkpoint]?"),
        ("[run]\nfrobnicate = true\n[xyzzy]", 3, "the sections are batch, checkpoint, data"),
        ("[redundancy]\nfrobnicate = true", 2, "the keys of [redundancy] are copies"),
        ("frobnicate = true", 1, "every key stands in a section"),
        ("model = 3", 1, "write [model] on a line above its keys"),
        ("[[model]]\nlayers = 3", 1, "write [model] on a line above its keys"),
        ("[model.deep]\nlayers = 3", 1, "the keys of [model] are context, heads"),
        ("[model]\n[model.option]\nx = 3", 2, "did you mean \"model.options\"?"),
        ("[optimizer]\nbeta = [0.9, 0.95]", 2, "did you mean \"optimizer.betas\"?"),
        ("[data]\ndtyp = \"u16\"", 2, "did you mean \"data.dtype\"?"),
    ] {
        let error = refused(text);
        assert_eq!(error.place, at_line(line), "{text}");
        assert!(error.problem.starts_with("unknown "), "{text}: {error}");
        assert!(error.advice.contains(nearest), "{text}: {error}");
    }
}

#[test]
fn a_value_that_cannot_be_is_refused_with_its_line_and_what_would_do() {
    for (text, line, problem) in [
        ("[run]\nsteps = \"many\"", 2, "run.steps is \"many\", but must be a whole number"),
        ("[run]\nsteps = 1.5", 2, "run.steps is 1.5, but must be a whole number"),
        ("[run]\nsteps = -1", 2, "run.steps is -1, but must be a whole number"),
        ("[run]\nsteps = 0", 2, "run.steps is 0"),
        ("[run]\nname = 3", 2, "run.name is 3, but must be text in quotes"),
        ("[run]\nmin_workers = 3", 2, "run.min_workers is 3, more than the 2 workers"),
        ("[model]\nlayers = 0", 2, "model.layers is 0"),
        ("[model]\nwidth = 5_000_000_000", 2, "model.width is 5_000_000_000"),
        ("[model]\nwidth = 96\nheads = 5", 3, "which does not divide model.width = 96"),
        ("[model]\nrecompute = 1", 2, "model.recompute is 1, but must be true or false"),
        ("[model]\nkind = \"mlp\"\nrecompute = true", 3, "\"mlp\", which has no blocks"),
        ("[model]\nprecision = \"f16\"", 2, "but must be \"f32\", \"bf16\" or \"fp16\""),
        ("[batch]\nmicro_batch = 0", 2, "batch.micro_batch is 0"),
        ("[optimizer]\nlearning_rate = nan", 2, "optimizer.learning_rate is NaN"),
        ("[optimizer]\nlearning_rate = -1e-3", 2, "optimizer.learning_rate is -0.001"),
        ("[optimizer]\nlearning_rate = inf", 2, "optimizer.learning_rate is inf"),
        ("[optimizer]\nclip_norm = 0", 2, "optimizer.clip_norm is 0"),
        ("[optimizer]\nkind = \"adam\"", 2, "Use \"adamw\", \"lion\" or \"sgd\""),
        ("[optimizer]\nbetas = 0.9", 2, "two numbers, such as [0.9, 0.95]"),
        ("[optimizer]\nbetas = [0.9, 1]", 2, "optimizer.betas is 1, but must be at least 0"),
        ("[optimizer]\nepsilon = 0", 2, "optimizer.epsilon is 0, but must be above 0"),
        ("[optimizer]\nmomentum = 0.5", 2, "\"adamw\", which has no such setting"),
        ("[optimizer]\nkind = \"lion\"\nepsilon = 1e-8", 3, "\"lion\", which has no such setting"),
        ("[optimizer.options]\n\nnesterov = true", 3, "nesterov is no option here"),
        ("[model.options]\ntied = true", 2, "model.options.tied is no option here"),
        ("[model.options]\ntied = [1]", 2, "model.options.tied is [1], but must be true, false, a"),
        ("[model.options]\nleak = nan", 2, "model.options.leak must be a finite number"),
        ("[model]\noptions = 3", 2, "model.options is 3, but must be a section"),
        ("[model]\nvocabulary = 1", 2, "model.vocabulary is 1, but must be a whole number from 2"),
        ("[model]\nvocabulary = 200", 2, "every byte is a token, so it must be 256 or more"),
        ("[data]\ndtype = \"i8\"", 2, "data.dtype is \"i8\", but must be \"u16\" or \"u32\""),
        ("[data]\ndtype = \"u16\"", 2, "of which every byte is a token, so it must be left out"),
        ("[model]\nlayers = 65536\nwidth = 384\nheads = 4", 2, "Lower one of the two: a model"),
        ("[optimizer]\nschedule = 3", 2, "\"constant\", \"cosine\" or \"linear\""),
        ("[wire]\nall_gather = \"f16\"", 2, "but must be \"f32\" or \"bf16\""),
        ("[wire]\nrounding = \"up\"", 2, "but must be \"nearest\" or \"stochastic\""),
        ("[wire]\nrounding = \"stochastic\"", 2, "wire.all_gather is f32, which rounds nothing"),
        ("[data]\nvalidation = 0.9", 2, "data.validation is 0.9"),
        ("[data]\nkind = \"ring\"", 2, "is \"ring\", which is no data set of this program"),
        ("[optimizer]\nfloor = 2", 2, "optimizer.floor is 2"),
        ("[redundancy]\nhang_after = 10", 2, "but must be a time such as \"10s\""),
        ("[redundancy]\nhang_after = \"500ms\"", 2, "redundancy.hang_after is 500ms"),
        ("[redundancy]\ncopies = 0", 2, "redundancy.copies is 0"),
        ("[checkpoint]\nkeep = 0", 2, "checkpoint.keep is 0"),
        ("[checkpoint]\nevery = 1d", 2, "this is not TOML"),
        ("[checkpoint]\nevery = -1", 2, "checkpoint.every is -1, but must be a whole number"),
        ("[checkpoint]\nevery = 5\non_failure = \"stop\"", 3, "\"continue\" or \"pause\""),
        ("[checkpoint]\nevery = 5\nkeep_every = 9e15", 3, "checkpoint.keep_every is 9e15"),
        ("[checkpoint]\nevery = 5\nkeep = 9000000000000", 3, "but must be 1 to 2^40"),
        ("[checkpoint]\nevery = 5\npath = \"\"", 3, "name a directory or a URL"),
        ("[checkpoint]\nevery = 5\npath = \"ftp://host/a\"", 3, "s3://BUCKET/FOLDER"),
        ("[checkpoint]\npath = \"s3://key:word@a/b\"\nevery = 5", 2, "is s3://…: a store's URL"),
        ("[run]\nseed = 1\nseed = 2", 3, "this is not TOML"),
        ("[run\n", 1, "this is not TOML"),
    ] {
        let error = refused(text);
        assert_eq!(error.place, at_line(line), "{text}: {error}");
        assert!(error.problem.contains(problem), "{text}: {error}");
        assert!(!error.advice.is_empty(), "{text}");
    }
}

#[test]
fn a_precision_is_stated_by_the_name_by_which_it_is_asked_for() {
    use Precision::{Bf16, F16, F32};
    for (name, precision) in [("f32", F32), ("bf16", Bf16), ("fp16", F16)] {
        let text = format!("[model]\nprecision = \"{name}\"");
        let run = resolved(&text, Overrides::default()).expect(name).run;
        assert_eq!(run.model.precision, precision);
        assert_eq!(serde_json::to_value(precision).unwrap(), name);
    }
}

#[test]
fn a_bad_flag_is_shown_as_the_flag() {
    let flags = |steps, workers| Overrides { steps, workers, ..Overrides::default() };
    let error = resolved(EVERYTHING, flags(Some(0), None)).unwrap_err();
    assert_eq!(error.place, ValueSource::Flag("--steps"));
    assert!(error.to_string().starts_with("--steps (or EVERSTEP_STEPS): run.steps is 0"));
    let error = resolved("", flags(None, Some(0))).unwrap_err();
    assert_eq!(error.place, ValueSource::Flag("--workers"));
}

#[test]
fn workers_that_start_here_are_some_of_those_that_the_run_starts_with() {
    let flags = |workers| Overrides { workers: Some(workers), ..Overrides::default() };
    assert_eq!(resolved("[run]\nstart_workers = 2", flags(2)).unwrap().workers, 2);
    for (text, workers, problem, advice) in [
        ("[run]\nstart_workers = 2", 0, "--workers is 0, but must be 1 or more", "--workers 1"),
        (
            "[run]\nstart_workers = 1",
            2,
            "--workers is 2, more than run.start_workers, which is 1",
            "at most --workers 1, or raise run.start_workers (run.toml:2)",
        ),
        ("", 1_025, "1025 workers would start here, at most 1024 can", "--workers 1024"),
    ] {
        let error = resolved(text, flags(workers)).expect_err(text);
        assert_eq!(error.place, ValueSource::Flag("--workers"), "{text}: {error}");
        assert_eq!(error.problem, problem);
        assert!(error.advice.contains(advice), "{error}");
    }
    let error = refused("[run]\nstart_workers = 2000");
    assert_eq!(error.place, at_line(2));
    assert!(error.advice.contains("--workers 1024"), "{error}");
    assert_eq!(resolved("[run]\nstart_workers = 2000", flags(2)).unwrap().workers, 2);
}

#[test]
fn a_benchmark_starts_with_its_own_number_of_workers() {
    let flags = Overrides { workers: Some(2), start_workers: Some(2), ..Overrides::default() };
    for text in ["", "[run]\nstart_workers = 1", "[run]\nstart_workers = 9\nmin_workers = 9"] {
        let Resolved { run, workers, .. } = resolved(text, flags.clone()).unwrap();
        assert_eq!((workers, run.start_workers), (2, 2), "{text}");
    }
}

#[test]
fn an_empty_data_path_is_refused() {
    let error = refused("[data]\npath = \"\"");
    assert_eq!(error.place, at_line(2));
    assert!(error.problem.starts_with("data.path is empty"), "{error}");
    let flags = Overrides { data: Some(String::new()), ..Overrides::default() };
    assert_eq!(resolved("", flags).unwrap_err().place, ValueSource::Flag("--data"));
}

#[test]
fn a_default_that_does_not_fit_is_shown_as_one() {
    let error = refused("[model]\nwidth = 130");
    assert_eq!(error.place, ValueSource::File(PathBuf::from("run.toml")));
    assert!(error.advice.contains("no line sets model.heads"), "{error}");
}

#[test]
fn a_relative_data_path_is_relative_to_the_current_directory() {
    let flags = |data: &str| Overrides { data: Some(data.into()), ..Overrides::default() };
    let path = read(None, &flags("tests"), &registry()).unwrap().run.data.path;
    assert_eq!(Path::new(&path), std::env::current_dir().unwrap().join("tests"));
    let list = read(None, &flags("@Cargo.toml"), &registry()).unwrap().run.data.path;
    assert!(list.starts_with("@/") && list.ends_with("/Cargo.toml"), "{list}");
    let error = read(None, &flags("no/such/text"), &registry()).unwrap_err();
    assert_eq!(error.place, ValueSource::Flag("--data"));
    assert!(error.problem.contains("no/such/text"), "{error}");
}

#[test]
fn the_path_of_a_registered_data_set_is_absolute_if_it_exists_and_stays_otherwise() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "[data]\nkind = \"rings\"").unwrap();
    let path = |data: &str| {
        let flags = Overrides { data: Some(data.into()), ..Overrides::default() };
        read(Some(file.path()), &flags, &registry()).unwrap().run.data.path
    };
    assert_eq!(Path::new(&path("tests")), std::env::current_dir().unwrap().join("tests"));
    assert_eq!(path("bucket://no/such/rings"), "bucket://no/such/rings");
}

#[test]
fn the_program_prints_one_block_and_exits_2() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "[model]\nheads = 3\n").unwrap();
    let path = file.path().to_str().unwrap();
    let output = everstep(&["train", "--config", path], &[]);
    assert_eq!(output.status.code(), Some(2));
    let printed = String::from_utf8(output.stderr).unwrap();
    let block = format!(
        "error: the configuration cannot be used\n  where: {path}:2\n    why: model.heads is 3, \
         which does not divide model.width = 128\n   next: change the value, or remove the line to \
         have the default\n"
    );
    assert_eq!(printed, block);
    assert!(output.stdout.is_empty());
}

#[test]
fn the_examples_can_be_used() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(folder).expect("there are examples");
    let files = files.map(|entry| entry.expect("readable").path());
    let is_run = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml");
    let runs: Vec<_> = files.filter(is_run).collect();
    for path in &runs {
        let text = std::fs::read_to_string(path).unwrap();
        let read = resolve(Some((path, &text)), &Overrides::default(), &examples());
        assert!(read.is_ok(), "{}: {:?}", path.display(), read.err());
    }
    assert!(runs.len() >= 5, "{runs:?}");
}

/// What the programs of the examples register.
fn examples() -> Registry {
    use everstep::{UpdateBlock, UpdateInputs, UpdateRule};

    #[derive(Debug)]
    struct Unused;

    impl UpdateRule for Unused {
        fn moments(&self) -> usize {
            0
        }
        fn update(&self, _block: UpdateBlock<'_>, _inputs: &UpdateInputs<'_>) {}
    }

    registry().optimizer("signum", |_| Ok(std::sync::Arc::new(Unused)))
}

/// Tokens of 2 MiB as nanoGPT writes them, and the configuration of GPT-2 124M that reads them.
#[test]
fn gpt_2_of_124_million_parameters_is_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let tokens: Vec<u8> =
        (0..1 << 20).flat_map(|index: u32| ((index % 50_257) as u16).to_le_bytes()).collect();
    let path = folder.path().join("train.bin");
    std::fs::write(&path, &tokens).unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/gpt2-124m.toml");
    let dry_run = |config: &str| {
        let data = path.to_str().unwrap();
        everstep(&["train", "--config", config, "--data", data, "--dry-run"], &[])
    };
    let output = dry_run(config);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("parameters      124439808\n"), "{printed}");
    // Of 2^20 tokens 524 are held out, too few for a sample.
    assert!(printed.contains("samples         1023 (0 held out)"), "{printed}");

    let small = folder.path().join("small.toml");
    let text = std::fs::read_to_string(config).unwrap();
    std::fs::write(&small, text.replace("50257", "50256")).unwrap();
    let output = dry_run(small.to_str().unwrap());
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("token 50256 of") && told.contains("train.bin is 50256"), "{told}");
}

#[test]
fn what_cannot_be_used_exits_2_and_names_it() {
    for (arguments, named) in [
        (&["train", "--config", "no/such.toml"][..], "no/such.toml"),
        (&["train", "--config", "."], "the configuration file cannot be read"),
        (&["train", "--step", "3"], "--steps"),
        (&["train", "--steps", "many"], "many"),
        (&["train", "--coordinators", "2"], "it must be 1, 3 or 5: three go on without one"),
        (&["demo", "--chaos", "20s"], "mtbf=20s"),
        (&["demo", "--for", "20"], "it must have a unit"),
        (&["worker", "drain", "3", "--dir", "no/such"], "no operator folder of a"),
        (&["trane"], "train"),
        (&[], "Usage"),
        (&["worker"], "--coordinators"),
        (&["worker", "--coordinators", "127.0.0.1", "--join", "x"], "HOST:PORT"),
        (&["worker", "--coordinators", "127.0.0.1:1", "--join", "@no/such"], "no/such"),
        (&["worker", "--coordinators", "h:1", "--join", "x", "--zone", " a"], "1 to 64 printable"),
        (&["generate", "--model", "m", "--prompt", "x", "--temperature", "-1"], "--temperature"),
        (&["generate", "--model", "no/such", "--prompt", "x"], "no/such"),
        (&["train", "--data", ""], "data.path is empty"),
        (&["train", "--data", "src", "--dir", "Cargo.toml/run"], "Cargo.toml/run"),
        (&["coordinator", "--bootstrap", "--dir", "Cargo.toml/run"], "Cargo.toml/run"),
    ] {
        let output = everstep(arguments, &[]);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {printed}");
        assert!(printed.contains(named), "{arguments:?}: {printed}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

/// A port that never answers keeps the worker asking for a while.
#[test]
#[cfg(target_os = "linux")]
fn a_token_on_the_command_line_is_warned_of_and_does_not_stay_there() {
    use std::time::{Duration, Instant};

    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let secret = "A".repeat(43);
    let token = format!("es1.AAAAAAAAAAAA.{secret}.{secret}");
    let mut worker = Command::new(env!("CARGO_BIN_EXE_everstep"))
        .args(["worker", "--coordinators", &address, "--join", &token])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let listed = || std::fs::read(format!("/proc/{}/cmdline", worker.id())).unwrap();
    let shows = |word: &str| listed().windows(word.len()).any(|bytes| bytes == word.as_bytes());
    let began = Instant::now();
    while shows(&secret) || !shows("worker") {
        assert!(began.elapsed() < Duration::from_secs(20), "the token stays on the command line");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(shows(&address) && !shows("--join"), "the other arguments are the same");
    worker.kill().unwrap();
    let said = String::from_utf8(worker.wait_with_output().unwrap().stderr).unwrap();
    assert!(said.contains("Pass --join @FILE, or --join @-"), "{said}");
}

#[test]
fn a_token_is_read_from_stdin() {
    use std::io::Write;

    let mut worker = Command::new(env!("CARGO_BIN_EXE_everstep"))
        .args(["worker", "--coordinators", "127.0.0.1:1", "--join", "@-"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    worker.stdin.take().unwrap().write_all(b"es1.a.b\n").unwrap();
    let output = worker.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("the join token has 3 parts instead of 4"), "{said}");
}

#[test]
fn a_variable_stands_for_its_flag_and_the_flag_wins() {
    let steps = [("EVERSTEP_STEPS", "0")];
    let output = everstep(&["train"], &steps);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(printed.contains("EVERSTEP_STEPS"), "{printed}");
    let output = everstep(&["train", "--steps", "5", "--copies", "0"], &steps);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("where: --copies (or EVERSTEP_COPIES)"), "{printed}");
}

#[test]
fn help_and_version_go_to_stdout_and_exit_0() {
    for argument in ["--help", "--version"] {
        let output = everstep(&[argument], &[]);
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8(output.stdout).unwrap().contains("everstep"));
        assert!(output.stderr.is_empty());
    }
}

fn everstep(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let ours = std::env::vars_os()
        .filter(|(name, _)| name.to_str().is_none_or(|name| !name.starts_with("EVERSTEP_")));
    Command::new(env!("CARGO_BIN_EXE_everstep"))
        .args(arguments)
        .env_clear()
        .envs(ours)
        .envs(variables.iter().copied())
        .output()
        .expect("the program starts")
}
