//! `everstep checkpoint ls`: the checkpoints of a run or of a store, oldest first.
//!
//! A store knows no durations. The events of a run do, and the coordinators of daemons know all.

use std::fs;
use std::path::Path;

use everstep_checkpoint::choose::{self, ChooseError};
use everstep_checkpoint::manifest::MAX_MANIFEST_BYTES;
use everstep_checkpoint::names::{ObjectName, step_folder};
use everstep_checkpoint::store::{Place, Store, StoreError, StoredObject};
use everstep_transport::protocol::Step;
use everstep_transport::protocol::checkpoint::CheckpointView;
use serde_json::{Value, json};

use super::source::{CheckpointSource, views};
use super::{choose_failure, store_failure};
use crate::cli::StoreFlags;
use crate::failure::Failure;
use crate::output::{self, table};

pub(super) fn run(flags: &StoreFlags) -> Result<(), Failure> {
    let source = CheckpointSource::find(flags)?;
    let views = match &source {
        CheckpointSource::Cluster(cluster) => views(cluster)?,
        // A run makes the directory with its first checkpoint.
        CheckpointSource::Store { place: Place::Directory(path), run: Some(_) }
            if !path.exists() =>
        {
            Vec::new()
        }
        CheckpointSource::Store { run, .. } => {
            let mut views = in_store(&*source.open()?)?;
            run.iter().for_each(|dir| add_seconds(&mut views, dir));
            views
        }
    };
    if flags.json {
        return output::print(json!(views));
    }
    if views.is_empty() {
        return output::print("there are no checkpoints");
    }
    let head = ["step", "MB", "seconds", "state hash", "state", "folder"].map(str::to_string);
    let rows: Vec<_> = std::iter::once(head).chain(views.iter().map(row)).collect();
    output::print(table(&rows))
}

/// The checkpoints of a store, by step.
pub(super) fn in_store(store: &dyn Store) -> Result<Vec<CheckpointView>, Failure> {
    let listing = store.list().map_err(store_failure)?;
    let mut read = |step| store.read_whole(&ObjectName::Manifest(step), MAX_MANIFEST_BYTES);
    let steps = choose::steps(&listing).into_iter();
    steps.map(|step| view(store.place(), &listing, step, &mut read)).collect()
}

/// One checkpoint. A manifest that this program cannot read is no error of the listing.
fn view(
    place: &str,
    listing: &[StoredObject],
    step: Step,
    read: &mut dyn FnMut(Step) -> Result<Vec<u8>, StoreError>,
) -> Result<CheckpointView, Failure> {
    let of_step = |object: &&StoredObject| object.name.step() == Some(step);
    let has_manifest = listing.iter().any(|object| object.name == ObjectName::Manifest(step));
    let (state_hash, damage) = match choose::exactly_of(listing, step, None, read) {
        Ok(manifest) => (Some(manifest.state_hash.to_string()), None),
        Err(ChooseError::Store(error)) => return Err(choose_failure(error.into())),
        // Its parts are being written, or were never completed.
        Err(_) if !has_manifest => (None, None),
        Err(ChooseError::Damaged { damage, .. }) => (None, Some(damage.to_string())),
        Err(error) => (None, Some(error.to_string())),
    };
    Ok(CheckpointView {
        step,
        bytes: listing.iter().filter(of_step).map(|object| object.bytes).sum(),
        seconds: None,
        complete: state_hash.is_some(),
        state_hash,
        path: format!("{}/{}", place.trim_end_matches('/'), step_folder(step)),
        damage,
    })
}

/// Adds how long the checkpoints took, from the events in a run's directory.
fn add_seconds(views: &mut [CheckpointView], dir: &Path) {
    let events = fs::read_to_string(dir.join("events.jsonl")).unwrap_or_default();
    for event in events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if event["event"] != "checkpoint" {
            continue;
        }
        let is_its = |view: &&mut CheckpointView| {
            event["step"] == view.step.0
                && event["state_hash"].as_str() == view.state_hash.as_deref()
        };
        if let Some(view) = views.iter_mut().find(is_its) {
            view.seconds = event["seconds"].as_f64();
        }
    }
}

fn row(view: &CheckpointView) -> [String; 6] {
    let state = match (&view.damage, view.complete) {
        (Some(damage), _) => format!("damaged: {damage}"),
        (None, true) => "complete".into(),
        (None, false) => "incomplete".into(),
    };
    let hash = view.state_hash.as_deref().map_or("-", |hash| &hash[..hash.len().min(16)]);
    [
        view.step.to_string(),
        format!("{:.1}", view.bytes as f64 / 1e6),
        view.seconds.map_or("-".into(), |seconds| format!("{seconds:.2}")),
        hash.into(),
        state,
        view.path.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use everstep_checkpoint::names::PartName;
    use everstep_checkpoint::store::ErrorKind;
    use everstep_transport::protocol::{Generation, WorkerId};

    use super::*;

    fn object(name: ObjectName) -> StoredObject {
        StoredObject { name, bytes: 1_500_000, changed: 0 }
    }

    fn part(step: u64) -> StoredObject {
        let name = PartName { generation: Generation(7), worker: WorkerId(12), claim: 1 };
        object(ObjectName::Part(Step(step), name))
    }

    #[test]
    fn what_is_not_complete_is_listed_with_what_is_known() {
        let listing = [part(5), part(10), object(ObjectName::Manifest(Step(10)))];
        let mut read = |_: Step| Ok(b"{}".to_vec());
        let of = |step, read: &mut dyn FnMut(Step) -> Result<Vec<u8>, StoreError>| {
            view("/srv/", &listing, Step(step), read)
        };
        let under_way = of(5, &mut read).expect("listed");
        assert_eq!((under_way.complete, &under_way.damage), (false, &None));
        assert_eq!(row(&under_way), ["5", "1.5", "-", "-", "incomplete", "/srv/step-000005"]);
        let damaged = of(10, &mut read).expect("listed");
        assert_eq!((damaged.bytes, damaged.complete), (3_000_000, false));
        assert!(row(&damaged)[4].starts_with("damaged: step-000010/manifest.json: it was cut"));
        let mut silent = |step| {
            Err(StoreError::new(ErrorKind::Retry, "/srv", &ObjectName::Manifest(step), "away"))
        };
        assert!(of(10, &mut silent).is_err(), "a store that does not answer is no damage");
    }

    #[test]
    fn the_events_of_a_run_tell_how_long_its_checkpoints_took() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = r#"{"event": "checkpoint", "step": 5, "state_hash": "ab", "seconds": 0.25}
            {"event": "checkpoint", "step": 5, "state_hash": "cd", "seconds": 0.5}
            half a li"#;
        fs::write(folder.path().join("events.jsonl"), text).expect("written");
        let mut view = CheckpointView {
            step: Step(5),
            bytes: 1,
            seconds: None,
            state_hash: Some("ab".into()),
            complete: true,
            path: "/srv/step-000005".into(),
            damage: None,
        };
        add_seconds(std::slice::from_mut(&mut view), folder.path());
        assert_eq!(view.seconds, Some(0.25));
        assert_eq!(row(&view)[2..5], ["0.25", "ab", "complete"]);
    }
}
