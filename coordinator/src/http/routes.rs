//! The paths of the API. `changes.rs` has the requests that change something.

use std::sync::Arc;

use actix_web::guard::{Any, Get, Head};
use actix_web::http::StatusCode;
use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, Resource, Route};
use everstep_transport::protocol::Step;
use serde_json::{Value, json};

use super::actor_client::ActorClient;
use super::answers::{self, ItemPage, PAGE};
use super::changes::{self, no_worker};
use super::problem::HttpProblem;
use super::process::ProcessFigures;
use super::query::QueryParams;
use super::{Overview, OwnAddress, metrics};
use crate::core::EventsAfter;

/// Every path, with its purpose.
pub(super) const PATHS: [(&str, &str); 25] = [
    ("GET /livez", "200 while the process answers"),
    ("GET /readyz", "200 while a coordinator is known to lead, else 503"),
    ("GET /metrics", "figures, as Prometheus reads them"),
    ("GET /api/v1/status", "what is going on (?stale=true, as for all of these: as known here)"),
    ("GET /api/v1/run", "the run, as in run.json"),
    ("GET /api/v1/workers", "the workers, as in cluster.json, and how their GPUs do"),
    ("GET /api/v1/workers/ID", "one of them"),
    ("GET /api/v1/generations?after=NUMBER", "the generations, as in the report"),
    ("GET /api/v1/events?after=NUMBER", "what happened, as in events.jsonl"),
    ("GET /api/v1/metrics?after=STEP", "settled steps, as in metrics.jsonl"),
    ("GET /api/v1/coordinators", "the coordinators, as in cluster.json, and how each stands"),
    ("GET /api/v1/runs", "the runs that are over, and the one under way"),
    ("GET /api/v1/tokens", "the tokens that admit nodes, without their secrets"),
    ("POST /api/v1/run", "submits a run, as in run.json (needs the token)"),
    ("POST /api/v1/run/cancel", "ends the run, or {\"run\": ID} (needs the token)"),
    ("POST /api/v1/run/pause", "lets the run rest (needs the token)"),
    ("POST /api/v1/run/resume", "lets a paused run go on (needs the token)"),
    ("POST /api/v1/run/checkpoint", "saves a checkpoint (needs the token)"),
    ("POST /api/v1/run/rollback", "lets the run go back to a checkpoint (needs the token)"),
    ("POST /api/v1/workers/ID/drain", "lets a worker leave (needs the token)"),
    ("POST /api/v1/workers/ID/revoke", "lets a worker in no more (needs the token)"),
    ("POST /api/v1/coordinators/ID/remove", "does without a coordinator (needs the token)"),
    ("POST /api/v1/coordinators/transfer", "lets another coordinator lead (needs the token)"),
    (
        "POST /api/v1/tokens",
        "makes a token for workers, and tells it once: good for 1 and for 900 s, unless `uses` and \
         `ttl_s` say otherwise, null being no limit (needs the token)",
    ),
    ("DELETE /api/v1/tokens/ID", "revokes a token, which admits no further node (needs the token)"),
];

type ReadResponse = Result<HttpResponse, HttpProblem>;

/// Puts every handler at its path.
pub(super) fn configure(config: &mut ServiceConfig) {
    let read = |path: &str, route: fn(Route) -> Route| {
        let reads = route(web::route().guard(Any(Get()).or(Head())));
        resource(path, "GET, HEAD").route(reads)
    };
    config
        .service(read("/livez", |route| route.to(livez)))
        .service(read("/readyz", |route| route.to(readyz)))
        .service(read("/metrics", |route| route.to(figures)))
        .service(read("/api/v1/status", |route| route.to(status)))
        .service(read("/api/v1/workers", |route| route.to(workers)))
        .service(read("/api/v1/workers/{id}", |route| route.to(worker)))
        .service(read("/api/v1/generations", |route| route.to(generations)))
        .service(read("/api/v1/events", |route| route.to(events)))
        .service(read("/api/v1/metrics", |route| route.to(lines)))
        .service(read("/api/v1/coordinators", |route| route.to(coordinators)))
        .service(read("/api/v1/runs", |route| route.to(runs)))
        .service(
            resource("/api/v1/run", "GET, HEAD, POST")
                .route(web::route().guard(Any(Get()).or(Head())).to(run))
                .route(web::post().to(changes::submit)),
        )
        .service(
            resource("/api/v1/tokens", "GET, HEAD, POST")
                .route(web::route().guard(Any(Get()).or(Head())).to(tokens))
                .route(web::post().to(changes::create_token)),
        )
        .default_service(web::to(nowhere));
    configure_changes(config);
}

fn configure_changes(config: &mut ServiceConfig) {
    let change =
        |path: &str, route: fn(Route) -> Route| resource(path, "POST").route(route(web::post()));
    config
        .service(change("/api/v1/run/cancel", |route| route.to(changes::cancel)))
        .service(change("/api/v1/run/pause", |route| route.to(changes::pause)))
        .service(change("/api/v1/run/resume", |route| route.to(changes::resume)))
        .service(change("/api/v1/run/checkpoint", |route| route.to(changes::checkpoint)))
        .service(change("/api/v1/run/rollback", |route| route.to(changes::rollback)))
        .service(change("/api/v1/workers/{id}/drain", |route| route.to(changes::drain)))
        .service(change("/api/v1/workers/{id}/revoke", |route| route.to(changes::revoke)))
        .service(change("/api/v1/coordinators/transfer", |route| route.to(changes::transfer)))
        .service(change("/api/v1/coordinators/{id}/remove", |route| route.to(changes::remove)))
        .service(
            resource("/api/v1/tokens/{id}", "DELETE")
                .route(web::delete().to(changes::revoke_token)),
        );
}

/// A path that takes these methods. It answers any other method with the list of them.
fn resource(path: &str, methods: &'static str) -> Resource {
    let other = move |request: HttpRequest| async move {
        HttpProblem::method(request.method(), request.path()).allowing(methods)
    };
    web::resource(path).default_service(web::to(other))
}

async fn nowhere(request: HttpRequest) -> ReadResponse {
    Err(HttpProblem::nowhere(request.path(), &PATHS))
}

// The process.

async fn livez() -> HttpResponse {
    plain(StatusCode::OK, "alive\n".into())
}

/// Like the other probes it waits for no other coordinator.
async fn readyz(actor: Data<ActorClient>) -> HttpResponse {
    let unready = |why: &str| plain(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n"));
    match actor.overview(true).await {
        Ok(overview) if overview.is_led => plain(StatusCode::OK, "ready\n".into()),
        Ok(_) => unready("no coordinator is known to lead"),
        Err(problem) => unready(&problem.error),
    }
}

async fn figures(actor: Data<ActorClient>) -> ReadResponse {
    let mut text = metrics::text(&*actor.overview(true).await?);
    text.extend(ProcessFigures::read().iter().map(metrics::process_text));
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(HttpResponse::Ok().content_type(kind).body(text))
}

// The run.

async fn status(actor: Data<ActorClient>, request: HttpRequest) -> ReadResponse {
    let (query, overview) = overview(&actor, &request).await?;
    Ok(told(query, answers::status(&overview)))
}

async fn run(actor: Data<ActorClient>, request: HttpRequest) -> ReadResponse {
    let (query, overview) = overview(&actor, &request).await?;
    match &overview.cluster.run {
        Some(run) => Ok(told(query, json!(run))),
        None => Err(HttpProblem::absent("no run was submitted yet", "POST one to /api/v1/run")),
    }
}

async fn runs(actor: Data<ActorClient>, request: HttpRequest) -> ReadResponse {
    let (query, overview) = overview(&actor, &request).await?;
    Ok(told(query, json!({ "runs": overview.runs })))
}

async fn tokens(actor: Data<ActorClient>, request: HttpRequest) -> ReadResponse {
    let (query, overview) = overview(&actor, &request).await?;
    Ok(told(query, json!({ "tokens": overview.tokens })))
}

async fn workers(actor: Data<ActorClient>, request: HttpRequest) -> ReadResponse {
    let (query, overview) = overview(&actor, &request).await?;
    Ok(told(query, json!({ "workers": overview.cluster.workers })))
}

async fn worker(
    actor: Data<ActorClient>,
    id: web::Path<String>,
    request: HttpRequest,
) -> ReadResponse {
    let (query, overview) = overview(&actor, &request).await?;
    let id = id.into_inner();
    let known = overview.cluster.workers.iter().find(|view| view.worker.to_string() == id);
    known.map(|view| told(query, json!(view))).ok_or_else(|| no_worker(&id))
}

async fn coordinators(
    actor: Data<ActorClient>,
    place: Data<OwnAddress>,
    request: HttpRequest,
) -> ReadResponse {
    let (query, overview) = overview(&actor, &request).await?;
    Ok(told(query, answers::coordinators(&overview, &place)))
}

/// The data for every answer that is no page.
async fn overview(
    actor: &ActorClient,
    request: &HttpRequest,
) -> Result<(QueryParams, Arc<Overview>), HttpProblem> {
    let query = QueryParams::of_whole(request.query_string())?;
    Ok((query, actor.overview(query.stale).await?))
}

// Numbered items.

async fn generations(actor: Data<ActorClient>, request: HttpRequest) -> ReadResponse {
    let query = QueryParams::of_page(request.query_string())?;
    let page = actor.page(query.stale, move |known| {
        let all = known.history.generations();
        let rest = &all[all.partition_point(|report| report.number.0 <= query.after)..];
        ItemPage::of(rest, query.after, |report| report.number.0)
    });
    Ok(told(query, answers::page("generations", &page.await?)))
}

async fn events(actor: Data<ActorClient>, request: HttpRequest) -> ReadResponse {
    let query = QueryParams::of_page(request.query_string())?;
    let page = actor.page(query.stale, move |known| {
        let read;
        let rest = match known.core.events_after(query.after) {
            EventsAfter::Recent(rest) => rest,
            EventsAfter::InFile(range) => {
                let events = known.history_file.events(range, PAGE + 1);
                read = events.map_err(|error| error.to_string())?;
                &read
            }
        };
        Ok(ItemPage::of(rest, query.after, |event| event.number))
    });
    let page = page.await?.map_err(|error: String| HttpProblem::unready(error))?;
    Ok(told(query, answers::page("events", &page)))
}

/// A client may have more steps than the run. The answer then shows that the run went back: the
/// client's lines after the answer's step are void.
async fn lines(actor: Data<ActorClient>, request: HttpRequest) -> ReadResponse {
    let query = QueryParams::of_page(request.query_string())?;
    let page = actor.page(query.stale, move |known| {
        let after = Step(query.after.min(known.core.newest_step().0));
        let gap = known.core.state().lines().gap_at(after.next());
        let after = gap.map_or(after, |gap| gap.to);
        let lines = known.lines.page(after, PAGE + 1).map_err(|error| error.to_string())?;
        Ok(ItemPage::of(&lines, after.0, |line| line.step.0))
    });
    let page = page.await?.map_err(|error: String| HttpProblem::unready(error))?;
    Ok(told(query, answers::page("metrics", &page)))
}

// Small helpers.

fn plain(status: StatusCode, text: String) -> HttpResponse {
    HttpResponse::build(status).content_type("text/plain; charset=utf-8").body(text)
}

/// Marks an answer that may not be the newest.
fn told(query: QueryParams, mut answer: Value) -> HttpResponse {
    if query.stale {
        answer["stale"] = json!(true);
    }
    HttpResponse::Ok().json(answer)
}
