//! Everything that was acknowledged survives the death of all coordinators at once, and the death
//! of a minority for good (I9).

use std::time::Duration;

use everstep_transport::identity::{
    Authority, EnrolmentError, JoinToken, Refusal, Role, TokenLimits,
};
use everstep_transport::protocol::OperatorCommand;
use everstep_transport::quic::{EnrolError, enrol};
use tokio::time::timeout;

use crate::operator::Operator;
use crate::several::leader;
use crate::support::{Cluster, Member};

/// How often the test kills all of them.
const ROUNDS: usize = 6;

/// Draws numbers below a bound, the same in every run.
fn dice() -> impl FnMut(u64) -> u64 {
    let mut state = 88_172_645_463_325_252_u64;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

/// Three coordinators, an operator, and the tokens that the cluster has accepted from that
/// operator.
struct Room {
    members: Vec<Member>,
    operator: Operator,
    authority: Authority,
    acknowledged: Vec<JoinToken>,
    /// The token of the request that was open when all coordinators died. It may exist.
    unanswered: Option<JoinToken>,
}

impl Room {
    async fn of_three() -> Self {
        let mut cluster = Cluster::idle(None).await;
        let first = cluster.take_member();
        let members = vec![first.joined_by(), first.joined_by(), first];
        let operator = Operator::of(&members[2]);
        let authority = Authority::load(&members[2].path("authority")).expect("an authority");
        let room =
            Self { members, operator, authority, acknowledged: Vec::new(), unanswered: None };
        room.leader(3).await;
        room
    }

    async fn leader(&self, voters: usize) -> &Member {
        leader(&self.members.iter().collect::<Vec<_>>(), voters).await
    }

    /// Asks for the next token, or again for the one without an answer.
    async fn command(&mut self) {
        let token = self.unanswered.take().unwrap_or_else(|| JoinToken::create(&self.authority));
        self.unanswered = Some(token.clone());
        // Their uses go through the log as well. A use that was left undecided may be spent.
        let limits = TokenLimits { uses: Some(1_000), ..TokenLimits::unlimited(Role::Worker) };
        let command = OperatorCommand::CreateToken(token.accepted(limits));
        self.operator.command(&self.members, command).await.expect("it is accepted");
        self.acknowledged.extend(self.unanswered.take());
    }

    /// Kills all, some while they write, and starts them again.
    async fn strike(&mut self) {
        self.members.iter_mut().for_each(Member::strike);
        let struck = std::mem::take(&mut self.members);
        self.members = struck.into_iter().map(Member::restarted).collect();
        self.leader(3).await;
    }

    /// Each of these tokens admits a worker, whichever coordinator leads.
    async fn assert_kept(&self, tokens: &[JoinToken]) {
        for token in tokens {
            let mut refusals = Vec::new();
            while !refusals.last().is_some_and(Result::is_ok) {
                assert!(refusals.len() < 1_000, "{token:?} is undecided for ever: {refusals:?}");
                let asked = self.members[refusals.len() % self.members.len()].address;
                let answer = enrol(asked, token, Role::Worker).await.map(drop);
                if let Err(EnrolError::Enrolment(EnrolmentError::Refused(refusal))) = &answer {
                    assert_eq!(*refusal, Refusal::Undecided, "{token:?} was acknowledged");
                }
                refusals.push(answer);
            }
        }
    }
}

#[tokio::test]
async fn i9_what_was_acknowledged_survives_the_death_of_all_at_once() {
    let mut room = Room::of_three().await;
    let mut dice = dice();
    for _ in 0..ROUNDS {
        let known = room.acknowledged.len();
        for _ in 0..1 + dice(8) {
            room.command().await;
        }
        // Chance decides whether the next request is answered, written or only sent before they
        // die.
        let moment = Duration::from_micros(dice(12_000));
        let _ = timeout(moment, room.command()).await;
        room.strike().await;
        room.assert_kept(&room.acknowledged[known..]).await;
    }
    room.assert_kept(&room.acknowledged).await;
}

#[tokio::test]
async fn i9_what_was_acknowledged_survives_a_leader_whose_disk_is_gone() {
    let mut room = Room::of_three().await;
    for _ in 0..5 {
        room.command().await;
    }
    let leader = room.leader(3).await;
    let (lost, address) = (leader.id().await, leader.address);
    // The member's directory goes with it.
    room.members.retain(|member| member.address != address);
    room.command().await;
    room.assert_kept(&room.acknowledged).await;
    // A coordinator in its place has another id, and learns the whole log.
    room.operator
        .command(&room.members, OperatorCommand::Remove(lost))
        .await
        .expect("it is removed");
    let next = room.leader(2).await.joined_by();
    room.members.push(next);
    assert_ne!(room.leader(3).await.id().await, lost);
    room.strike().await;
    room.assert_kept(&room.acknowledged).await;
}
