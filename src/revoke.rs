//! `everstep worker revoke`, `everstep operator`: revoked names.

use std::path::Path;

use everstep_transport::identity::{Credentials, Identity, Role};
use everstep_transport::protocol::outcome::{Update, WorkerView};
use everstep_transport::protocol::question::RevokedView;
use everstep_transport::protocol::{NodeName, OperatorCommand, Step};
use serde_json::json;

use crate::cli::{AskFlags, OperatorTask, RevokeOperatorFlags, RevokeWorkerFlags};
use crate::failure::{Exit, Failure};
use crate::operator::{ClusterHandle, NEWEST};
use crate::worker::{meant, unknown};
use crate::{logging, output};

/// The operator's commands for operators.
pub(crate) fn run(task: &OperatorTask) -> Result<(), Failure> {
    logging::start("warn")?;
    match task {
        OperatorTask::Ls(flags) => list(flags),
        OperatorTask::Revoke(flags) => operator(flags),
    }
}

pub(crate) fn worker(flags: &RevokeWorkerFlags) -> Result<(), Failure> {
    logging::start("warn")?;
    let cluster = ClusterHandle::find(&flags.ask.cluster)?;
    let word = flags.worker.as_str();
    let revoked = cluster.ask(async |operator| {
        let Update { workers, idle, .. } = operator.watch(Step(NEWEST), NEWEST).await?;
        let Some(name) = name_of(word, &cluster.dir, &workers) else { return Ok(Err(workers)) };
        let identity = Identity { role: Role::Worker, name };
        let idle = idle.iter().map(|idle| &idle.name);
        let mut known = workers.iter().map(|view| &view.name).chain(idle);
        let is_known = known.any(|name| *name == identity.name);
        // A repeated revocation is no error.
        if !is_known && !flags.unknown && !includes(&operator.revoked().await?, &identity) {
            return Ok(Err(workers));
        }
        operator.command(OperatorCommand::Revoke(identity.clone())).await?;
        Ok(Ok(identity))
    })?;
    let revoked = revoked.map_err(|workers| {
        unknown(word, &cluster.dir, &workers)
            .because("a worker that is gone for long is remembered no more: see `--unknown`")
    })?;
    tell(&revoked, flags.ask.json)
}

/// The name of the meant worker, even if it is gone.
fn name_of(word: &str, dir: &Path, workers: &[WorkerView]) -> Option<NodeName> {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    let named = || NodeName::parse(word).filter(|_| !is_number);
    meant(word, dir, workers).map(|view| view.name.clone()).or_else(named)
}

fn operator(flags: &RevokeOperatorFlags) -> Result<(), Failure> {
    let cluster = ClusterHandle::find(&flags.ask.cluster)?;
    let own = cluster.identity()?;
    let held = Credentials::load(Path::new(&flags.operator)).ok();
    let operator = match &held {
        Some(held) => held.identity().clone(),
        None => Identity { role: Role::Operator, name: stated(&flags.operator)? },
    };
    let is_given = held.is_some() || flags.unknown || own == operator;
    let revoked = cluster.ask(async |asked| {
        // A repeated revocation is no error.
        let is_known = is_given
            || asked.operators().await?.contains(&operator.name)
            || includes(&asked.revoked().await?, &operator);
        if is_known {
            asked.command(OperatorCommand::Revoke(operator.clone())).await?;
        }
        Ok(is_known)
    });
    match revoked {
        Ok(true) => tell(&operator, flags.ask.json),
        Ok(false) => Err(Failure::new(
            Exit::Usage,
            format!("there is no operator {}", operator.name),
        )
        .at(cluster.dir.display())
        .because("an operator that has not asked for long is remembered no more: see `--unknown`")
        .next("pass its name, or its folder: `everstep operator ls` lists those that are known")),
        Err(_) if own == operator && has_revoked(&cluster, &operator) => {
            tell(&operator, flags.ask.json)
        }
        Err(failure) => Err(failure),
    }
}

fn stated(word: &str) -> Result<NodeName, Failure> {
    NodeName::parse(word).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("\"{word}\" is no operator's name, nor a folder"))
            .next("pass the folder `operator` of a coordinator, or a copy of one")
    })
}

/// Whether the operator is revoked. An operator that revokes itself may lose its links before it
/// has the answer. The folder of a coordinator has other credentials by then.
fn has_revoked(cluster: &ClusterHandle, operator: &Identity) -> bool {
    let revoked = cluster.ask(async |asked| asked.revoked().await).unwrap_or_default();
    includes(&revoked, operator)
}

fn includes(revoked: &[RevokedView], node: &Identity) -> bool {
    revoked.iter().any(|view| (view.role, &view.name) == (node.role, &node.name))
}

fn tell(Identity { role, name }: &Identity, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return output::print(json!({ "role": role, "name": name, "state": "revoked" }));
    }
    output::print(format_args!("{role} {name} is let in no more, and its links are closed"))
}

fn list(flags: &AskFlags) -> Result<(), Failure> {
    let cluster = ClusterHandle::find(&flags.cluster)?;
    let own = cluster.identity()?;
    let (known, revoked) = cluster
        .ask(async |operator| Ok((operator.operators().await?, operator.revoked().await?)))?;
    if flags.json {
        return output::print(json!({ "own": own.name, "known": known, "revoked": revoked }));
    }
    let head = ["role", "name", "state"].map(str::to_string);
    let this = [own.role.to_string(), own.name.to_string(), "this one".into()];
    let others = known.into_iter().map(|name| Identity { role: Role::Operator, name });
    let others = others.filter(|other| *other != own && !includes(&revoked, other));
    let others = others.map(|it| [it.role.to_string(), it.name.to_string(), "known".into()]);
    let shut_out = revoked.iter().map(|RevokedView { role, name, .. }| {
        [role.to_string(), name.to_string(), "revoked".into()]
    });
    let rows: Vec<_> = [head, this].into_iter().chain(others).chain(shut_out).collect();
    output::print(output::table(&rows))
}
