//! What is at which path.

use actix_web::guard::{Any, Get, Head};
use actix_web::http::StatusCode;
use actix_web::web::{self, Data, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, Resource, Route};
use everstep_transport::protocol::{Message, RunSpec, Step, WorkerId};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::answers::{self, Page};
use super::problem::Problem;
use super::source::Source;
use super::{BODY_PATIENCE, MAX_BODY, Place, metrics};

/// Every path, with what is there.
pub(super) const PATHS: [(&str, &str); 13] = [
    ("GET /livez", "200 while the process answers"),
    ("GET /readyz", "200 once it can serve; before, 503 and why"),
    ("GET /metrics", "figures, as Prometheus reads them"),
    ("GET /api/v1/status", "what is going on, in a sentence and in figures"),
    ("GET /api/v1/run", "the run, as in run.json"),
    ("GET /api/v1/workers", "the workers, as in cluster.json"),
    ("GET /api/v1/workers/ID", "one of them"),
    ("GET /api/v1/generations?after=NUMBER", "the generations, as in the report"),
    ("GET /api/v1/events?after=NUMBER", "what happened, as in events.jsonl"),
    ("GET /api/v1/metrics?after=STEP", "settled steps, as in metrics.jsonl"),
    ("GET /api/v1/coordinators", "the coordinators, as in cluster.json"),
    ("POST /api/v1/run", "submits a run, as in run.json; needs the token"),
    ("POST /api/v1/workers/ID/drain", "lets a worker leave; needs the token"),
];

type Answer = Result<HttpResponse, Problem>;

/// Puts everything at its path.
pub(super) fn lay(config: &mut ServiceConfig) {
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
        .service(
            resource("/api/v1/run", "GET, HEAD, POST")
                .route(web::route().guard(Any(Get()).or(Head())).to(run))
                .route(web::post().to(submit)),
        )
        .service(resource("/api/v1/workers/{id}/drain", "POST").route(web::post().to(drain)))
        .default_service(web::to(nowhere));
}

/// A path that takes these methods, and says so to whoever uses another.
fn resource(path: &str, methods: &'static str) -> Resource {
    let other = move |request: HttpRequest| async move {
        Problem::method(request.method(), request.path()).allowing(methods)
    };
    web::resource(path).default_service(web::to(other))
}

async fn nowhere(request: HttpRequest) -> Answer {
    Err(Problem::nowhere(request.path(), &PATHS))
}

// The process.

async fn livez() -> HttpResponse {
    plain(StatusCode::OK, "it lives\n".into())
}

async fn readyz(source: Data<Source>) -> HttpResponse {
    let unready = |why: &str| plain(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n"));
    match source.overview().await {
        Ok(overview) if overview.cluster.leads.is_some() => {
            plain(StatusCode::OK, "it is ready\n".into())
        }
        Ok(_) => unready("no coordinator is known to lead"),
        Err(problem) => unready(&problem.error),
    }
}

async fn figures(source: Data<Source>) -> Answer {
    let text = metrics::text(&*source.overview().await?);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(HttpResponse::Ok().content_type(kind).body(text))
}

fn plain(status: StatusCode, text: String) -> HttpResponse {
    HttpResponse::build(status).content_type("text/plain; charset=utf-8").body(text)
}

// The run.

async fn status(source: Data<Source>) -> Answer {
    Ok(found(answers::status(&*source.overview().await?)))
}

async fn run(source: Data<Source>) -> Answer {
    match &source.overview().await?.cluster.run {
        Some(run) => Ok(HttpResponse::Ok().json(run)),
        None => Err(Problem::absent("no run was submitted yet", "POST one to /api/v1/run")),
    }
}

async fn workers(source: Data<Source>) -> Answer {
    Ok(found(json!({ "workers": source.overview().await?.cluster.workers })))
}

async fn worker(source: Data<Source>, id: web::Path<String>) -> Answer {
    let overview = source.overview().await?;
    let known =
        parse(&id).and_then(|id| overview.cluster.workers.iter().find(|view| view.worker == id));
    known.map(|view| HttpResponse::Ok().json(view)).ok_or_else(|| no_worker(&id))
}

async fn coordinators(source: Data<Source>, place: Data<Place>) -> Answer {
    Ok(found(answers::coordinators(&*source.overview().await?, &place)))
}

// What is numbered.

async fn generations(source: Data<Source>, request: HttpRequest) -> Answer {
    let after = after(request.query_string())?;
    let page = source.page(move |known| {
        let all = known.history.generations();
        let rest = &all[all.partition_point(|report| report.number.0 <= after)..];
        Page::of(rest, after, |report| report.number.0)
    });
    Ok(found(answers::page("generations", &page.await?)))
}

async fn events(source: Data<Source>, request: HttpRequest) -> Answer {
    let after = after(request.query_string())?;
    let page = source.page(move |known| {
        let rest = known.core.events_after(after);
        Page::of(rest, after, |event| event.number)
    });
    Ok(found(answers::page("events", &page.await?)))
}

/// A client that has more steps than there are is told so: the run went back, and its lines after
/// the step that is named are void.
async fn lines(source: Data<Source>, request: HttpRequest) -> Answer {
    let after = after(request.query_string())?;
    let page = source.page(move |known| {
        let newest = known.core.lines_after(Step(0)).last().map_or(0, |line| line.step.0);
        let after = after.min(newest);
        Page::of(known.core.lines_after(Step(after)), after, |line| line.step.0)
    });
    Ok(found(answers::page("metrics", &page.await?)))
}

/// The number in `after=NUMBER`; 0 for none.
fn after(query: &str) -> Result<u64, Problem> {
    let number = match query {
        "" => Some(0),
        query => query.strip_prefix("after=").and_then(|number| number.parse().ok()),
    };
    number.ok_or_else(|| {
        Problem::bad("the query is not understood", "ask with ?after=NUMBER, or without a query")
    })
}

// What changes something. The token was shown, or it would not come here.

async fn submit(source: Data<Source>, body: Payload) -> Answer {
    let run = parse_run(&read(body).await?)?;
    let name = run.name.clone();
    source.change(Message::Submit(run)).await?;
    let place = ("location", "/api/v1/run");
    Ok(HttpResponse::Created().insert_header(place).json(json!({ "run": name })))
}

async fn drain(source: Data<Source>, id: web::Path<String>) -> Answer {
    let worker = parse(&id).ok_or_else(|| no_worker(&id))?;
    let overview = source.overview().await?;
    if !overview.cluster.workers.iter().any(|view| view.worker == worker) {
        return Err(no_worker(&id));
    }
    source.change(Message::Drain { worker }).await?;
    Ok(HttpResponse::Accepted().json(json!({ "id": worker, "state": "leaving" })))
}

async fn read(body: Payload) -> Result<web::Bytes, Problem> {
    let bytes = timeout(BODY_PATIENCE, body.to_bytes_limited(MAX_BODY)).await;
    let late = |_| {
        let error = "the body did not come in time";
        Problem::new(StatusCode::REQUEST_TIMEOUT, error, "send it at once")
    };
    let large = |_| {
        let error = format!("the body has more than {MAX_BODY} bytes");
        let next = "a run is a few hundred bytes, as in run.json";
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error, next)
    };
    let broken = |_| Problem::bad("the body broke off", "send it again");
    bytes.map_err(late)?.map_err(large)?.map_err(broken)
}

/// A run that is one.
fn parse_run(body: &[u8]) -> Result<RunSpec, Problem> {
    let run: RunSpec = serde_json::from_slice(body).map_err(|error| {
        let next = "send what a run's directory has in run.json";
        Problem::bad(format!("the body is no run: {error}"), next)
    })?;
    run.validate().map_err(|error| {
        let next = "correct it, and send the run again";
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string(), next)
    })?;
    Ok(run)
}

// Small words.

fn found(value: Value) -> HttpResponse {
    HttpResponse::Ok().json(value)
}

fn parse(id: &str) -> Option<WorkerId> {
    id.parse().ok().map(WorkerId)
}

fn no_worker(id: &str) -> Problem {
    let next = "look at /api/v1/workers for those that are known";
    Problem::absent(format!("there is no worker {id}"), next)
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;

    use super::*;

    #[test]
    fn a_query_names_where_to_go_on_or_is_refused() {
        assert_eq!(after("").ok(), Some(0));
        assert_eq!(after("after=17").ok(), Some(17));
        for query in ["after=", "after=-1", "after=x", "before=1", "after=1&after=2", "x"] {
            let problem = after(query).expect_err(query);
            assert_eq!(problem.status, StatusCode::BAD_REQUEST, "{query}");
        }
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
        assert!(parse_run(b"\xff").is_err() && parse_run(b"").is_err());
    }
}
