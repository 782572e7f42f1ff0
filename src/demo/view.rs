//! How the demo looks: a pure function of the model, on a terminal's cells or in one plain line.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};

use super::keys::LEGEND;
use super::model::{Lane, LaneState, Model};
use crate::cluster::GenerationReport;
use crate::progress::{clock, nats};
use everstep_transport::protocol::outcome::WorkerState;

/// Draws the model.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let lanes = model.lanes.len() as u16;
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(lanes + 3),
        Constraint::Length(6),
        Constraint::Min(3),
        Constraint::Length(1),
    ]);
    let [head, gauge, warnings, workers, loss, below, legend] = rows.areas(frame.area());
    let halves = Layout::horizontal([Constraint::Percentage(55), Constraint::Percentage(45)]);
    let [generations, story] = halves.areas(below);
    frame.render_widget(Paragraph::new(headline(model)), head);
    let done = model.step as f64 / model.steps.max(1) as f64;
    let label = format!("step {} of {}", model.step, model.steps);
    let colour = Style::new().fg(Color::Green);
    frame.render_widget(
        Gauge::default().ratio(done.clamp(0.0, 1.0)).label(label).gauge_style(colour),
        gauge,
    );
    let alarm = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
    frame.render_widget(Paragraph::new(model.warnings.join("   ")).style(alarm), warnings);
    frame.render_widget(workers_table(model), workers);
    draw_losses(frame, model, loss);
    frame.render_widget(generations_table(model, generations.height), generations);
    frame.render_widget(story_lines(model, story.height), story);
    let faint = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(LEGEND).style(faint), legend);
}

/// The model in one plain line.
pub(super) fn line(model: &Model) -> String {
    let training = model.lanes.iter().filter(|lane| lane.rank.is_some()).count();
    let generation = model.generations.last().map_or(0, |generation| generation.number.0);
    let mut parts = vec![
        format!("step {}/{}", model.step, model.steps),
        format!("{training} of {} workers take part", model.lanes.len()),
        format!("generation {generation}"),
    ];
    parts.extend(model.losses.last().map(|loss| format!("loss {}", nats(*loss))));
    parts.extend(model.tokens_per_second.map(|rate| format!("{rate:.0} tokens/s")));
    parts.extend(model.warnings.iter().cloned());
    parts.join("  ")
}

fn headline(model: &Model) -> String {
    let mut parts = vec![format!("everstep demo: {}", model.run)];
    parts.extend(model.losses.last().map(|loss| format!("loss {} nats", nats(*loss))));
    parts.extend(model.tokens_per_second.map(|rate| format!("{rate:.0} tokens/s")));
    parts.push(clock(model.elapsed.as_secs_f64()));
    parts.join("   ")
}

fn workers_table(model: &Model) -> Table<'static> {
    let row = |(at, lane): (usize, &Lane)| {
        let id = lane.worker.map_or("-".into(), |worker| worker.to_string());
        let rank = lane.rank.map_or("-".into(), |rank| rank.to_string());
        let shards = if lane.rank.is_some() { lane.data_shards.to_string() } else { "-".into() };
        let (state, does, colour) = words(lane);
        let mark = if at == model.chosen { ">" } else { " " };
        let style = Style::new().fg(colour);
        let style = if at == model.chosen { style.add_modifier(Modifier::BOLD) } else { style };
        let cells = [format!("{mark} {}", at + 1), lane.label.clone(), id, rank, shards];
        Row::new(cells.into_iter().chain([state.into(), does.into()])).style(style)
    };
    let widths = [
        Constraint::Length(4),
        Constraint::Length(22),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Length(12),
        Constraint::Length(10),
        Constraint::Min(20),
    ];
    let header = ["", "worker", "id", "rank", "data shards", "state", "what it does"];
    let faint = Style::new().add_modifier(Modifier::DIM);
    Table::new(model.lanes.iter().enumerate().map(row), widths)
        .header(Row::new(header).style(faint))
        .block(Block::bordered().title("workers"))
}

/// A lane's state, what that means, and its colour.
fn words(lane: &Lane) -> (&'static str, &'static str, Color) {
    let leads = lane.rank.is_some_and(|rank| rank.0 == 0);
    match lane.state {
        LaneState::Starting => ("starting", "its process has just begun", Color::DarkGray),
        LaneState::Paused => ("paused", "its process is stopped: p lets it go on", Color::Magenta),
        LaneState::Seen(state) => match state {
            WorkerState::Waiting => ("waiting", "has registered", Color::Cyan),
            WorkerState::Learning => ("learning", "is brought up to date", Color::Cyan),
            WorkerState::Training if leads => {
                ("training", "computes, and leads the steps", Color::Green)
            }
            WorkerState::Training => ("training", "computes", Color::Green),
            WorkerState::Suspected => ("suspected", "is not heard of", Color::Yellow),
            WorkerState::Leaving => ("leaving", "hands over what it holds", Color::Blue),
            WorkerState::Finished => ("finished", "has trained the last step", Color::Green),
            WorkerState::Lost => ("lost", "comes back under a new id", Color::Red),
            WorkerState::Left => ("left", "is on its way out", Color::DarkGray),
        },
    }
}

fn draw_losses(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let block = Block::bordered().title("loss");
    let width = block.inner(area).width as usize;
    let data = heights(&model.losses, width);
    let style = Style::new().fg(Color::Cyan);
    frame.render_widget(Sparkline::default().data(data).style(style).block(block), area);
}

/// The losses as the heights of at most `width` bars, of a thousand: the lowest finite one is 1.
fn heights(losses: &[f64], width: usize) -> Vec<u64> {
    let finite: Vec<f64> = losses.iter().copied().filter(|loss| loss.is_finite()).collect();
    let bars = finite.chunks(finite.len().div_ceil(width.max(1)).max(1));
    let bars: Vec<f64> =
        bars.map(|losses| losses.iter().sum::<f64>() / losses.len() as f64).collect();
    let (low, high) =
        bars.iter().fold((f64::MAX, f64::MIN), |(low, high), bar| (low.min(*bar), high.max(*bar)));
    let scale = if high > low { 999.0 / (high - low) } else { 0.0 };
    bars.iter().map(|bar| 1 + ((bar - low) * scale) as u64).collect()
}

fn generations_table(model: &Model, height: u16) -> Table<'static> {
    let row = |generation: &GenerationReport| {
        let about: Vec<_> = generation.workers.iter().map(ToString::to_string).collect();
        let cause = format!("{:?} {}", generation.cause, about.join(","));
        let stall = generation.stall_ms.map_or("-".into(), |ms| format!("{ms:.0} ms"));
        let members = generation.members.len().to_string();
        let cells = [generation.number.to_string(), generation.at_step.to_string(), members];
        Row::new(cells.into_iter().chain([stall, cause]))
    };
    let widths = [
        Constraint::Length(4),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Min(10),
    ];
    let faint = Style::new().add_modifier(Modifier::DIM);
    let newest = model.generations.len().saturating_sub(height.saturating_sub(3) as usize);
    Table::new(model.generations[newest..].iter().rev().map(row), widths)
        .header(Row::new(["no.", "after", "members", "stall", "cause"]).style(faint))
        .block(Block::bordered().title("generations"))
}

fn story_lines(model: &Model, height: u16) -> Paragraph<'static> {
    let newest = model.story.len().saturating_sub(height.saturating_sub(2) as usize);
    let lines: Vec<Line<'static>> =
        model.story[newest..].iter().rev().map(|sentence| Line::from(sentence.clone())).collect();
    Paragraph::new(lines).block(Block::bordered().title("what happened"))
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{Cause, Generation, NodeName, Rank, Step, WorkerId};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn lane(number: u64, rank: Option<u32>, state: LaneState) -> Lane {
        Lane {
            label: format!("worker-{number}"),
            name: NodeName::parse(&format!("node-{number}")).expect("a name"),
            pid: Some(number as u32),
            worker: Some(WorkerId(number)),
            rank: rank.map(Rank),
            data_shards: 4,
            state,
        }
    }

    fn model() -> Model {
        let training = LaneState::Seen(WorkerState::Training);
        let generation = GenerationReport {
            number: Generation(2),
            cause: Cause::Lost,
            workers: vec![WorkerId(9)],
            members: vec![WorkerId(1), WorkerId(2)],
            at_step: Step(57),
            redone: true,
            waiting: false,
            detect_ms: Some(60.0),
            stall_ms: Some(141.4),
        };
        Model {
            run: "tiny".into(),
            steps: 200,
            step: 60,
            losses: (0..60).map(|step| 5.5 - f64::from(step) / 20.0).collect(),
            tokens_per_second: Some(5_123.4),
            lanes: vec![lane(1, Some(0), training), lane(2, None, LaneState::Paused)],
            chosen: 1,
            generations: vec![generation],
            warnings: vec!["under-protected: 85 parameter shards".into()],
            story: vec!["lost worker 9: closed".into()],
            ..Model::default()
        }
    }

    fn screen(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, model)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let row = |row: u16| (0..width).map(|x| buffer[(x, row)].symbol()).collect::<String>();
        (0..height).map(|y| row(y) + "\n").collect()
    }

    #[test]
    fn everything_of_the_model_is_on_the_screen() {
        let shown = screen(&model(), 120, 30);
        for words in [
            "everstep demo: tiny",
            "loss 2.550 nats",
            "5123 tokens/s",
            "step 60 of 200",
            "under-protected: 85 parameter shards",
            "worker-1",
            "computes, and leads the steps",
            "> 2  worker-2",
            "paused",
            "57",
            "141 ms",
            "Lost 9",
            "lost worker 9: closed",
            "k kill",
        ] {
            assert!(shown.contains(words), "no \"{words}\" in\n{shown}");
        }
    }

    #[test]
    fn a_small_screen_and_an_empty_model_are_drawn_too() {
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            screen(&model(), width, height);
            screen(&Model::default(), width, height);
        }
    }

    #[test]
    fn losses_fill_the_width_and_what_is_not_finite_is_left_out() {
        assert_eq!(heights(&[3.0, 2.0, f64::NAN, 1.0], 10), [1_000, 500, 1]);
        assert_eq!(heights(&[4.0, 2.0, 1.0, 1.0], 2), [1_000, 1]);
        assert_eq!(heights(&[2.0, 2.0], 10), [1, 1]);
        assert_eq!(heights(&[], 10), [0_u64; 0]);
    }

    #[test]
    fn a_plain_line_says_the_same() {
        let line = line(&model());
        let words = "step 60/200  1 of 2 workers take part  generation 2  loss 2.550";
        assert!(line.starts_with(words), "{line}");
        assert!(line.ends_with("under-protected: 85 parameter shards"), "{line}");
    }
}
