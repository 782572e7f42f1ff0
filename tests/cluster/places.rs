//! Errors of a place and errors of a run, with real processes and directories. The cluster waits
//! out a directory that takes nothing. A run that no worker can compute fails once, with the
//! worker's words. No worker ends for either.

use std::fs;
use std::path::{Path, PathBuf};

use crate::world::{CoordinatorGroup, Program, World, show, until};

/// A cluster for many runs, and two workers that wait for one.
struct Places {
    world: World,
    group: CoordinatorGroup,
    workers: Vec<Program>,
}

impl Places {
    /// Each worker writes to its directory, if it has one.
    fn begin(world: World, dirs: &[Option<&Path>]) -> Self {
        let group = CoordinatorGroup::found(&world.path("coordinators"), 1, &[]);
        let mut places = Self { world, group, workers: Vec::new() };
        dirs.iter().for_each(|dir| places.add(*dir));
        places
    }

    fn home(&self) -> &Path {
        &self.group.members[0].dir
    }

    fn add(&mut self, dir: Option<&Path>) {
        let addresses = self.group.addresses();
        // Without --dir a worker writes to the folder of its token's file. This one gets the
        // token's text.
        let token = self.world.path("token");
        fs::copy(self.home().join("join.token"), &token).expect("a token");
        let text = fs::read_to_string(&token).expect("a token");
        let mut arguments = vec!["worker", "--coordinators", &addresses, "--device", "cpu"];
        arguments.extend(["--join", text.trim()]);
        arguments.extend(dir.iter().flat_map(|dir| ["--dir", show(dir)]));
        let mut worker = self.world.start(&arguments);
        assert!(worker.line().is_some(), "it listens: {}", worker.said());
        self.workers.push(worker);
    }

    fn submit(&self) {
        let config = self.world.config();
        let submit = ["run", "submit", show(&config), "--dir", show(self.home())];
        let ended = self.world.start(&submit).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    fn status(&self) -> String {
        self.world.start(&["run", "status", "--dir", show(self.home())]).end().stdout
    }

    /// Waits until the status has all of these words.
    fn until_said(&self, words: &[&str]) {
        until("the status says it", || {
            let status = self.status();
            words.iter().all(|word| status.contains(word)).then_some(())
        });
        assert!(self.workers.iter().all(|worker| !worker.is_over()), "all workers are there");
    }
}

fn world() -> World {
    World::new().with("run.steps", 30).with("run.start_workers", 2)
}

fn folder(world: &World, name: &str) -> PathBuf {
    let path = world.path(name);
    fs::create_dir(&path).expect("a folder");
    path
}

#[test]
fn a_directory_that_is_gone_costs_time_and_no_worker() {
    let world = world();
    let dir = folder(&world, "models");
    let places = Places::begin(world, &[Some(&dir), Some(&dir)]);
    fs::remove_dir_all(&dir).expect("removed");
    fs::write(&dir, "a file in its place").expect("written");
    places.submit();
    let model = dir.join("model.safetensors");
    places.until_said(&["the model cannot be written", show(&model), "Not a directory"]);
    fs::remove_file(&dir).expect("removed");
    fs::create_dir(&dir).expect("made");
    places.until_said(&["complete: all 30 steps, and the model is ", show(&model)]);
    assert!(model.is_file());
    let listed = ["run", "ls", "--json", "--dir", show(places.home())];
    let listed = places.world.start(&listed).end().stdout;
    assert!(listed.contains("\"workers_lost\":0"), "{listed}");
    assert!(listed.contains(&format!("\"model\":\"{}\"", model.display())), "{listed}");
}

/// Opening a pipe does not return until another process opens its other end, as an operation on a
/// file server that is away.
#[test]
fn a_directory_that_does_not_answer_is_told_of_and_waited_for() {
    let world = world().with("run.steps", 400);
    let dirs = ["one", "two"].map(|name| folder(&world, name));
    let places = Places::begin(world, &dirs.each_ref().map(|dir| Some(&**dir)));
    let pipes = dirs.each_ref().map(|dir| dir.join("model.safetensors"));
    let go_away = || {
        for pipe in &pipes {
            rustix::fs::mkfifoat(rustix::fs::CWD, pipe, 0o600.into()).expect("a pipe");
        }
    };
    let come_back = || {
        for pipe in &pipes {
            // A process that opens both ends does not wait. A worker that has waited finds no
            // model.
            let both_ends = fs::File::options().read(true).write(true).open(pipe).expect("a pipe");
            fs::remove_file(pipe).expect("removed");
            drop(both_ends);
        }
    };
    go_away();
    places.submit();
    places.until_said(&["has not answered for"]);
    come_back();
    places.until_said(&["training"]);
    go_away();
    places.until_said(&["the model cannot be written", "the directory has not answered for"]);
    come_back();
    places.until_said(&["complete: all 400 steps, and the model is "]);
    let listed = ["run", "ls", "--json", "--dir", show(places.home())];
    let listed = places.world.start(&listed).end().stdout;
    assert!(listed.contains("\"workers_lost\":0"), "{listed}");
}

#[test]
fn a_run_that_nobody_can_write_waits_for_a_worker_with_a_directory() {
    let world = world();
    let dir = folder(&world, "models");
    let mut places = Places::begin(world, &[None, None]);
    places.submit();
    places.until_said(&["no worker has a directory to write the model to", "--dir"]);
    places.add(Some(&dir));
    places.until_said(&["complete: all 30 steps", show(&dir)]);
    assert!(dir.join("model.safetensors").is_file());
}

#[test]
fn a_run_whose_data_is_nowhere_fails_once_and_the_workers_train_the_next() {
    let world = world();
    let dir = folder(&world, "models");
    let text = show(&world.path("text.txt")).to_string();
    let mut places = Places::begin(world, &[Some(&dir), Some(&dir)]);
    places.world = places.world.with("data.path", "/nowhere/at-all");
    places.submit();
    places.until_said(&["failed: ", "cannot compute it", "/nowhere/at-all"]);
    let listed = places.world.start(&["run", "ls", "--dir", show(places.home())]).end().stdout;
    assert!(listed.contains("/nowhere/at-all"), "{listed}");
    places.world = places.world.with("data.path", text);
    places.submit();
    places.until_said(&["complete: all 30 steps"]);
}

#[test]
fn a_worker_with_other_data_stays_and_trains_the_next_run() {
    let world = world();
    let dir = folder(&world, "models");
    let text = fs::read_to_string(world.path("text.txt")).expect("a text");
    let path = show(&world.path("text.txt")).to_string();
    let mut places = Places::begin(world.with("data.path", path), &[Some(&dir)]);
    places.submit();
    places.until_said(&["1 of 2 workers registered"]);
    places.world.write("text.txt", &text.replacen("worker", "Worker", 1));
    places.add(Some(&dir));
    places.until_said(&["but worker-", "cannot compute yet: it differs from worker-", ": data "]);
    places.world.write("text.txt", &text);
    let cancel = ["run", "cancel", "--dir", show(places.home())];
    let ended = places.world.start(&cancel).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    places.submit();
    places.until_said(&["complete: all 30 steps"]);
}

#[test]
fn a_model_of_absurd_size_is_refused_before_anything_is_built() {
    let world = World::new().with("model.layers", 65_536).with("model.width", 384);
    let dry = world.launch(&["--dry-run"]).program.end();
    assert_eq!(dry.code, Some(2), "{dry:?}");
    assert!(dry.block().contains("a model has at most 2^35"), "{dry:?}");
}

/// A model with more memory than this machine has. The figures are those of a plan.
#[test]
fn a_dry_run_of_a_model_beyond_this_machine_prints_its_figures() {
    let world = World::new().with("model.kind", "gpt").with("model.heads", 16);
    let world = world.with("model.layers", 48).with("model.width", 6_144);
    let dry = world.launch(&["--dry-run"]).program.end();
    assert_eq!(dry.code, Some(0), "{dry:?}");
    assert!(dry.stdout.contains("together, about"), "{dry:?}");
    assert!(dry.stdout.contains("\nthis machine    has "), "{dry:?}");
}
