//! `everstep bench joins`: how long the other workers stand still when a worker joins, and when it
//! leaves.

use everstep_transport::protocol::WorkerId;
use everstep_worker::registry::Registry;
use serde_json::json;

use super::churn::{self, Churn, TimeSamples};
use crate::cli::JoinsFlags;
use crate::cluster::ClusterOptions;
use crate::failure::Failure;
use crate::output;

/// One worker that joined and left, times in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Visit {
    /// How long the others stood still when the worker became a member.
    join: f64,
    /// From the start of its process until the worker was a member.
    arrival: f64,
    /// How long the others stood still when the worker left.
    leave: f64,
}

pub(super) fn run(flags: &JoinsFlags, registry: &Registry) -> Result<(), Failure> {
    let options = ClusterOptions::new(flags.churn.workers);
    let (visits, step_ms, calm) = churn::run(&flags.churn, registry, options, async |churn| {
        let mut visits = Vec::new();
        while (visits.len() as u32) < flags.joins {
            visits.push(visit(churn).await?);
            churn.say(visits.len() as u32, flags.joins, "joins");
        }
        Ok((visits, churn::step_ms(churn.progress()), churn::calm(churn.progress())))
    })?;
    print(flags, &visits, step_ms, calm)
}

/// Lets a worker join a cluster that is whole, and leave again.
async fn visit(churn: &mut Churn) -> Result<Visit, Failure> {
    churn.until_whole().await?;
    let before = churn.progress().members().to_vec();
    let event = churn.newest_event();
    let began = churn::unix_ms();
    churn.cluster().add_worker(&[])?;
    let stranger = |workers: &[WorkerId]| workers.iter().find(|id| !before.contains(id)).copied();
    let joined = |workers: &[WorkerId]| stranger(workers).is_some();
    let (joiner, arrival, join) = churn
        .until("joined", |progress| {
            let (generation, unix_ms, _) = churn::change(progress, event, joined)?;
            let joiner = stranger(progress.members())?;
            Some((joiner, unix_ms as f64 - began, churn::stall_ms(progress, generation)?))
        })
        .await?;
    let event = churn.newest_event();
    churn.cluster().drain(joiner).await?;
    let left = churn.until("without the worker that leaves", |progress| {
        let (generation, ..) = churn::change_without(progress, event, joiner)?;
        churn::stall_ms(progress, generation)
    });
    Ok(Visit { join, arrival, leave: left.await? })
}

fn print(
    flags: &JoinsFlags,
    visits: &[Visit],
    step_ms: f64,
    calm: TimeSamples,
) -> Result<(), Failure> {
    let times = |time: fn(&Visit) -> f64| TimeSamples::new(visits.iter().map(time));
    let [join, arrival, leave] = [times(|v| v.join), times(|v| v.arrival), times(|v| v.leave)];
    let (workers, count) = (flags.churn.workers, visits.len());
    if flags.churn.json {
        return output::print(json!({
            "workers": workers, "joins": count, "step_ms": step_ms, "calm_ms": calm.json(),
            "stall_ms": join.json(), "arrival_ms": arrival.json(), "leave_ms": leave.json(),
        }));
    }
    output::print(format_args!(
        "{count} joins to {workers} workers, a step takes {step_ms:.1} ms\n  \
           calm     {}  (how much longer steps take to which nothing happens)\n  \
           stall    {}  (of the others, at the join)\n  \
           arrival  {}  (start of the process to member)\n  \
           leave    {}  (stall of the others)",
        calm.words(),
        join.words(),
        arrival.words(),
        leave.words()
    ))
}
