//! Clients that read all tokens, or all runs, from one coordinator after the other.

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_transport::identity::format_token_id;
use everstep_transport::protocol::{Message, Question, Reply};
use tokio::time::{sleep, timeout};

use super::{Client, List, RUN};
use crate::client::try_look;

/// Longer than the test stops a leader, to hear its answer afterwards.
const READER_ANSWER_TIMEOUT: Duration = Duration::from_millis(2_500);

impl Client {
    /// Reads, as often as a coordinator answers.
    pub(super) async fn read(mut self) {
        let mut round = 0;
        while !self.record.is_over() {
            round += 1;
            let place = (self.number as usize + round / 8) % 3;
            let (called, of_runs) = (self.record.now(), round % 4 >= 2);
            let found = match round % 2 {
                0 => self.read_link(place, of_runs).await,
                _ => self.read_api(place, of_runs).await,
            };
            match found {
                Some(there) => {
                    let answered = self.record.now();
                    self.record.note_list(List { of_runs, there, called, answered });
                }
                None => sleep(Duration::from_millis(5)).await,
            }
        }
    }

    async fn read_link(&mut self, place: usize, of_runs: bool) -> Option<BTreeSet<String>> {
        let question = if of_runs { Question::Runs } else { Question::Tokens };
        match self.ask(place, Message::Ask(question), READER_ANSWER_TIMEOUT).await? {
            Message::Reply(Reply::Tokens(tokens)) => {
                Some(tokens.iter().map(|token| format_token_id(&token.id)).collect())
            }
            Message::Reply(Reply::Runs(runs)) => {
                Some(under_way(runs.last().map(|run| run.state.as_str())))
            }
            other => panic!("not told but {other:?}"),
        }
    }

    async fn read_api(&mut self, place: usize, of_runs: bool) -> Option<BTreeSet<String>> {
        let path = if of_runs { "/api/v1/runs" } else { "/api/v1/tokens" };
        let answer =
            timeout(READER_ANSWER_TIMEOUT, try_look(self.place(place).api, path)).await.ok()??;
        if answer.status != 200 {
            return None;
        }
        let told = answer.json();
        if of_runs {
            let runs = told["runs"].as_array()?;
            return Some(under_way(runs.last().and_then(|run| run["state"].as_str())));
        }
        let tokens = told["tokens"].as_array()?;
        Some(tokens.iter().filter_map(|token| Some(token["id"].as_str()?.to_string())).collect())
    }
}

/// Whether the newest run, which has this state, is under way.
fn under_way(state: Option<&str>) -> BTreeSet<String> {
    state.filter(|state| *state != "failed").map(|_| RUN.to_string()).into_iter().collect()
}
