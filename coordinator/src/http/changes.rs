//! Requests that change something. The guard has checked the token.
//!
//! All of them but a transfer of leadership take an `Idempotency-Key` (`key.rs`). A request that a
//! client repeats with the same key is carried out once, and gets the same answer as before.

use std::time::{SystemTime, UNIX_EPOCH};

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::web::{self, Data, Payload};
use everstep_transport::identity::{Identity, Role, TokenLimits, format_token_id, parse_token_id};
use everstep_transport::protocol::reason::FailReason;
use everstep_transport::protocol::{
    CoordinatorId, Generation, Message, OperatorCommand, RunId, RunSpec, Step, WorkerId,
};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::actor_client::ActorClient;
use super::key::IdempotencyKey;
use super::problem::HttpProblem;
use super::{Issuer, MAX_BODY, REQUEST_BODY_TIMEOUT};

type ChangeResponse = Result<HttpResponse, HttpProblem>;

pub(super) async fn submit(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    body: Payload,
) -> ChangeResponse {
    let run = parse_run(&read(body).await?)?;
    let name = run.name.clone();
    let id = actor.command(key, OperatorCommand::Submit(run.into())).await?;
    let place = ("location", "/api/v1/run");
    Ok(HttpResponse::Created().insert_header(place).json(json!({ "run": name, "id": id })))
}

/// The run to end. None: the newest one.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelBody {
    run: Option<RunId>,
}

/// A client that may repeat the request has to name the run, since the newest could be another by
/// then.
pub(super) async fn cancel(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    body: Payload,
) -> ChangeResponse {
    let next = "send {\"run\": ID}, with the id that /api/v1/runs tells";
    let body = read(body).await?;
    let CancelBody { run } = match body.is_empty() {
        true => CancelBody::default(),
        false => parse(&body, next)?,
    };
    let run = match run {
        Some(run) => run,
        None if key.id().is_some() => {
            let error = "with the header `Idempotency-Key`, the run has to be named";
            return Err(HttpProblem::bad(error, next));
        }
        None => actor.overview(false).await?.runs.last().map_or(RunId(0), |run| run.id),
    };
    actor.command(key, OperatorCommand::Cancel(run)).await?;
    let reason = FailReason::Cancelled.to_string();
    Ok(HttpResponse::Ok().json(json!({ "run": run, "state": "failed", "reason": reason })))
}

/// The run that a request means. It has to be named, since the newest could be another by then.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunBody {
    run: RunId,
}

/// Carries out a command for the run that the body names, and tells what becomes of it.
async fn direct(
    actor: &ActorClient,
    key: IdempotencyKey,
    body: Payload,
    command: impl FnOnce(RunId) -> OperatorCommand,
    state: &str,
) -> ChangeResponse {
    let next = "send {\"run\": ID}, with the id that /api/v1/runs tells";
    let RunBody { run } = parse(&read(body).await?, next)?;
    actor.command(key, command(run)).await?;
    Ok(HttpResponse::Accepted().json(json!({ "run": run, "state": state })))
}

/// The pause is in force after the step under way.
pub(super) async fn pause(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    body: Payload,
) -> ChangeResponse {
    direct(&actor, key, body, OperatorCommand::Pause, "pausing").await
}

pub(super) async fn resume(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    body: Payload,
) -> ChangeResponse {
    direct(&actor, key, body, OperatorCommand::Resume, "training").await
}

/// Events tell of the checkpoint.
pub(super) async fn checkpoint(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    body: Payload,
) -> ChangeResponse {
    direct(&actor, key, body, OperatorCommand::Checkpoint, "saving").await
}

/// The run, and the step to go back to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RollbackBody {
    run: RunId,
    step: u64,
    /// The newest generation that the client knows of: see [`OperatorCommand::Rollback`].
    #[serde(default)]
    generation: u64,
}

pub(super) async fn rollback(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    body: Payload,
) -> ChangeResponse {
    let next = "send {\"run\": ID, \"step\": 0}, with the id that /api/v1/runs tells";
    let RollbackBody { run, step, generation } = parse(&read(body).await?, next)?;
    let (step, generation) = (Step(step), Generation(generation));
    // The run may have gone back already because of an earlier copy of this very request.
    if step > Step(0) && is_new(&actor, key).await? {
        actor.verify(key, step).await?;
    }
    actor.command(key, OperatorCommand::Rollback { run, step, generation }).await?;
    Ok(HttpResponse::Accepted().json(json!({ "run": run, "step": step })))
}

/// Whether this coordinator knows of no request with the key.
async fn is_new(actor: &ActorClient, key: IdempotencyKey) -> Result<bool, HttpProblem> {
    match key.id() {
        Some(id) => Ok(!actor.find(move |known| known.core.knows_request(id)).await?),
        None => Ok(true),
    }
}

pub(super) async fn drain(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    id: web::Path<String>,
) -> ChangeResponse {
    let worker = id.parse().map(WorkerId).map_err(|_| no_worker(&id))?;
    // A worker that no view lists may have left because of an earlier copy of this very request.
    let is_new = is_new(&actor, key).await?;
    let overview = actor.overview(true).await?;
    if is_new && !overview.cluster.workers.iter().any(|view| view.worker == worker) {
        return Err(no_worker(&id));
    }
    actor.command(key, OperatorCommand::Drain(worker)).await?;
    Ok(HttpResponse::Accepted().json(json!({ "id": worker, "state": "leaving" })))
}

pub(super) async fn remove(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    id: web::Path<String>,
) -> ChangeResponse {
    let coordinator = id.parse().map(CoordinatorId).map_err(|_| {
        let next = "look at /api/v1/coordinators for those there are";
        HttpProblem::absent(format!("there is no coordinator {id}"), next)
    })?;
    actor.command(key, OperatorCommand::Remove(coordinator)).await?;
    Ok(HttpResponse::Accepted().json(json!({ "id": coordinator, "state": "removed" })))
}

/// The coordinator that has to lead. None: the one with most of the log.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferBody {
    to: Option<CoordinatorId>,
}

pub(super) async fn transfer(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    body: Payload,
) -> ChangeResponse {
    key.must_be_absent()?;
    let body = read(body).await?;
    let TransferBody { to } = match body.is_empty() {
        true => TransferBody::default(),
        false => parse(&body, "send nothing, or {\"to\": ID}")?,
    };
    actor.change(key, |id| Message::Transfer { id, to }).await?;
    Ok(HttpResponse::Ok().json(json!({ "to": to, "state": "transferred" })))
}

/// The limits of a new token. The defaults are those of `everstep token create`. `null` stands for
/// no limit.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    role: Role,
    #[serde(default = "one_use")]
    uses: Option<u32>,
    #[serde(default = "quarter_of_an_hour")]
    ttl_s: Option<u64>,
}

fn one_use() -> Option<u32> {
    Some(1)
}

fn quarter_of_an_hour() -> Option<u64> {
    Some(900)
}

/// Tells the token itself to the client alone, and never keeps it.
pub(super) async fn create_token(
    actor: Data<ActorClient>,
    issuer: Data<Issuer>,
    key: IdempotencyKey,
    body: Payload,
) -> ChangeResponse {
    let next = "send {\"role\": \"worker\", \"uses\": 4, \"ttl_s\": 900}. Without the last two it \
                is good for one worker and 900 s, and null is no limit";
    let body = read(body).await?;
    let TokenBody { role, uses, ttl_s } = parse(&body, next)?;
    if role != Role::Worker {
        return Err(too_much(role));
    }
    // A clock before 1970 is wrong anyway.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let expires_unix_s = ttl_s.map(|ttl| now.saturating_add(ttl));
    let token = key.token(&issuer.0, &body);
    let (id, accepted) = (token.id(), token.accepted(TokenLimits { role, uses, expires_unix_s }));
    actor.command(key, OperatorCommand::CreateToken(accepted)).await?;
    // Its limits are those of its creation, perhaps a while ago.
    let all = actor.find(|known| known.core.state().tokens().views()).await?;
    let made = all.into_iter().find(|view| view.id == id).ok_or_else(|| {
        let error = format!("the token {} was made, and revoked since", format_token_id(&id));
        HttpProblem::new(
            StatusCode::GONE,
            error,
            "make another one, with another `Idempotency-Key`",
        )
    })?;
    let mut made = json!(made);
    made["token"] = json!(token.to_string());
    Ok(HttpResponse::Created().json(made))
}

/// Such a token yields more than is safe on this connection, which is not encrypted.
fn too_much(role: Role) -> HttpProblem {
    let error = format!("over HTTP tokens are made for workers only, not with the role {role}");
    let next = "use `everstep token create` or `everstep coordinator add`, which ask over a link";
    HttpProblem::new(StatusCode::FORBIDDEN, error, next)
}

/// A worker that is revoked loses its links at once.
pub(super) async fn revoke(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    id: web::Path<String>,
) -> ChangeResponse {
    let worker = id.parse().map(WorkerId).map_err(|_| no_worker(&id))?;
    let overview = actor.overview(false).await?;
    let found = overview.cluster.workers.iter().find(|view| view.worker == worker);
    let name = found.map(|view| view.name.clone()).ok_or_else(|| no_worker(&id))?;
    actor.command(key, OperatorCommand::Revoke(Identity { role: Role::Worker, name })).await?;
    Ok(HttpResponse::Ok().json(json!({ "id": worker, "state": "revoked" })))
}

pub(super) async fn revoke_token(
    actor: Data<ActorClient>,
    key: IdempotencyKey,
    id: web::Path<String>,
) -> ChangeResponse {
    let token = parse_token_id(&id).map_err(|_| {
        let next = "look at /api/v1/tokens for those there are";
        HttpProblem::absent(format!("there is no token {id}"), next)
    })?;
    actor.command(key, OperatorCommand::RevokeToken(token)).await?;
    Ok(HttpResponse::Ok().json(json!({ "id": *id, "state": "revoked" })))
}

async fn read(body: Payload) -> Result<web::Bytes, HttpProblem> {
    let bytes = timeout(REQUEST_BODY_TIMEOUT, body.to_bytes_limited(MAX_BODY)).await;
    let late = |_| {
        let error = "the body did not come in time";
        HttpProblem::new(StatusCode::REQUEST_TIMEOUT, error, "send it at once")
    };
    let large = |_| {
        let error = format!("the body has more than {MAX_BODY} bytes");
        let next = "a run is a few hundred bytes, as in run.json";
        HttpProblem::new(StatusCode::PAYLOAD_TOO_LARGE, error, next)
    };
    let broken = |_| HttpProblem::bad("the body broke off", "send it again");
    bytes.map_err(late)?.map_err(large)?.map_err(broken)
}

/// Parses and validates a run.
fn parse_run(body: &[u8]) -> Result<RunSpec, HttpProblem> {
    let run = RunSpec::from_file(body).map_err(|error| {
        let next = "send what a run's directory has in run.json";
        HttpProblem::bad(format!("the body is no run: {error}"), next)
    })?;
    run.validate().map_err(|error| {
        let next = "correct it, and send the run again";
        HttpProblem::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string(), next)
    })?;
    if let Some(error) = run.data.is_elsewhere() {
        let next = "send it with the absolute path of the text on the workers' machines";
        return Err(HttpProblem::new(StatusCode::UNPROCESSABLE_ENTITY, error, next));
    }
    Ok(run)
}

fn parse<'b, T: Deserialize<'b>>(body: &'b [u8], next: &str) -> Result<T, HttpProblem> {
    let wrong = |error| HttpProblem::bad(format!("the body is not understood: {error}"), next);
    serde_json::from_slice(body).map_err(wrong)
}

pub(super) fn no_worker(id: &str) -> HttpProblem {
    let next = "look at /api/v1/workers for those that are known";
    HttpProblem::absent(format!("there is no worker {id}"), next)
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;

    use super::*;

    #[test]
    fn a_token_is_good_for_one_worker_and_a_quarter_of_an_hour_unless_it_says_otherwise() {
        let wanted = |text: &str| parse::<TokenBody>(text.as_bytes(), "").expect("understood");
        let role = Role::Worker;
        let (uses, ttl_s) = (Some(1), Some(900));
        assert_eq!(wanted(r#"{"role": "worker"}"#), TokenBody { role, uses, ttl_s });
        let unlimited = r#"{"role": "worker", "uses": null, "ttl_s": null}"#;
        assert_eq!(wanted(unlimited), TokenBody { role, uses: None, ttl_s: None });
        let wanted = wanted(r#"{"role": "worker", "uses": 4}"#);
        assert_eq!(wanted, TokenBody { role, uses: Some(4), ttl_s });
    }

    #[test]
    fn a_run_is_read_as_it_is_written_and_what_cannot_be_is_named() {
        let run = exemplars::run();
        let text = serde_json::to_value(&run).expect("plain data");
        assert_eq!(parse_run(text.to_string().as_bytes()), Ok(run));
        let without = |key: &str| {
            let mut text = text.clone();
            text.as_object_mut().expect("an object").remove(key);
            parse_run(text.to_string().as_bytes()).expect_err("a key is missing")
        };
        assert!(without("seed").error.contains("`seed`"));
        let mut unknown = text.clone();
        unknown["sede"] = json!(7);
        let unknown = parse_run(unknown.to_string().as_bytes()).expect_err("no such key");
        assert!(unknown.error.contains("`sede`"), "{unknown}");
        let mut none = text.clone();
        none["steps"] = json!(0);
        let none = parse_run(none.to_string().as_bytes()).expect_err("no run");
        assert_eq!((none.status.as_u16(), &none.error[..9]), (422, "run.steps"));
        let mut relative = text.clone();
        relative["data"]["path"] = json!("texts");
        let relative = parse_run(relative.to_string().as_bytes()).expect_err("it is nowhere");
        assert!(relative.error.contains("data.path is \"texts\""), "{relative}");
        assert!(parse_run(b"\xff").is_err() && parse_run(b"").is_err());
    }
}
