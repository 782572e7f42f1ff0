//! `everstep coordinator status`: the coordinators, the leader, and whether all are there.

use everstep_transport::protocol::question::CoordinatorStatus;
use serde_json::json;

use crate::cli::AskFlags;
use crate::failure::Failure;
use crate::operator::{ClusterHandle, CoordinatorsStatus};
use crate::output::{self, table};

pub(super) fn run(flags: &AskFlags) -> Result<(), Failure> {
    let status =
        ClusterHandle::find(&flags.cluster)?.ask(async |operator| operator.status().await)?;
    if flags.json {
        let CoordinatorsStatus { term, coordinators } = &status;
        return output::print(json!({ "term": term, "coordinators": coordinators }));
    }
    let head = ["id", "name", "state", "log", "address", "api"].map(str::to_string);
    let rows = status.coordinators.iter().map(row);
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    output::print(format_args!("{}\n{}", sentence(&status), table(&rows)))
}

/// The state of the coordinators, and its consequence.
fn sentence(status: &CoordinatorsStatus) -> String {
    let CoordinatorsStatus { term, coordinators } = status;
    let voters: Vec<_> = coordinators.iter().filter(|coordinator| coordinator.votes).collect();
    let there = voters.iter().filter(|voter| voter.silent_since_unix_ms.is_none()).count();
    let leader = coordinators.iter().find(|coordinator| coordinator.leads);
    let leads = leader.map_or("no coordinator leads".into(), |leader| {
        format!("coordinator {} leads in term {term}", leader.view.id)
    });
    let (all, needed) = (voters.len(), voters.len() / 2 + 1);
    let spare = there.saturating_sub(needed);
    let bears = match spare {
        0 if all == 1 => "a cluster of three would go on without one".into(),
        0 => "none of them may be lost now".into(),
        1 => "one of them may be lost".into(),
        more => format!("{more} of them may be lost"),
    };
    let (leaving, staying): (Vec<_>, Vec<_>) =
        coordinators.iter().partition(|coordinator| coordinator.leaves);
    let learning = staying.iter().filter(|coordinator| !coordinator.votes).count();
    let learning = match learning {
        0 => String::new(),
        _ => format!(". Waiting: {learning} more learn the log before they vote"),
    };
    let leaving: Vec<_> = leaving.iter().map(|leaver| leaver.view.id.to_string()).collect();
    let leaving = match &leaving[..] {
        [] => String::new(),
        ids => format!(". Waiting: until the others do without {}, it is needed", ids.join(", ")),
    };
    format!("{leads}. {there} of {all} that vote are there, {bears}{learning}{leaving}")
}

fn row(coordinator: &CoordinatorStatus) -> [String; 6] {
    let CoordinatorStatus { view, votes, leads, leaves, matched, silent_since_unix_ms } =
        coordinator;
    let state = match (leads, votes, silent_since_unix_ms) {
        (true, ..) => "leads",
        _ if *leaves => "leaves",
        (_, _, Some(_)) => "silent",
        (_, true, None) => "follows",
        (_, false, None) => "learns",
    };
    [
        view.id.to_string(),
        view.name.to_string(),
        state.into(),
        matched.map_or("-".into(), |index| index.to_string()),
        view.address.to_string(),
        view.api.map_or("-".into(), |api| format!("http://{api}")),
    ]
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{CoordinatorId, CoordinatorView, NodeName, Term};

    use super::*;

    fn coordinator(id: u64, silent: bool) -> CoordinatorStatus {
        let name = NodeName::parse("coordinator-1").expect("a name");
        let address = ([127, 0, 0, 1], 4).into();
        CoordinatorStatus {
            view: CoordinatorView { id: CoordinatorId(id), name, address, api: None },
            votes: true,
            leaves: false,
            leads: id == 1,
            matched: Some(9),
            silent_since_unix_ms: silent.then_some(5),
        }
    }

    #[test]
    fn it_is_said_how_many_may_be_lost_yet() {
        for (silent, words) in [
            (&[false][..], "1 of 1 that vote are there, a cluster of three would go on"),
            (&[false, false, false], "3 of 3 that vote are there, one of them may be lost"),
            (&[false, true, false], "2 of 3 that vote are there, none of them may be lost now"),
            (&[false; 5], "5 of 5 that vote are there, 2 of them may be lost"),
        ] {
            let coordinators = (1..).zip(silent).map(|(id, silent)| coordinator(id, *silent));
            let status = CoordinatorsStatus { term: Term(3), coordinators: coordinators.collect() };
            let said = sentence(&status);
            assert!(said.starts_with("coordinator 1 leads in term 3. "), "{said}");
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn who_leaves_is_needed_until_the_log_does_without_it() {
        let leaver = CoordinatorStatus { leaves: true, ..coordinator(7, false) };
        assert_eq!(row(&leaver)[2], "leaves");
        let coordinators = vec![coordinator(1, false), leaver];
        let said = sentence(&CoordinatorsStatus { term: Term(1), coordinators });
        assert!(said.contains("2 of 2 that vote are there, none of them may be lost"), "{said}");
        assert!(said.ends_with("Waiting: until the others do without 7, it is needed"), "{said}");
    }

    #[test]
    fn who_learns_is_waited_for() {
        let learner = CoordinatorStatus { votes: false, ..coordinator(7, false) };
        let coordinators = vec![coordinator(1, false), learner];
        let said = sentence(&CoordinatorsStatus { term: Term(1), coordinators });
        assert!(said.ends_with(". Waiting: 1 more learn the log before they vote"), "{said}");
    }
}
