//! The look of the demo: a pure function of the model, on a terminal's cells or in one plain line.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table, Wrap};

use super::keys::LEGEND;
use super::model::{RowState, ViewContent, WorkerRow};
use crate::cluster::GenerationReport;
use crate::progress::{clock, shown_loss};
use everstep_transport::protocol::Cause;
use everstep_transport::protocol::outcome::WorkerState;

/// The least height of the losses, with their border.
const LEAST_LOSSES: u16 = 6;
/// The width of the labels beside the losses, columns.
const AXIS: u16 = 8;

pub(super) fn draw(frame: &mut Frame<'_>, model: &ViewContent) {
    let area = frame.area();
    let warnings = model.warnings.join("   ");
    let width = usize::from(area.width.max(1));
    let warned = warnings.chars().count().div_ceil(width).clamp(1, 3) as u16;
    let workers = model.rows.len() as u16 + 3;
    // The losses and the rows below them share the rest.
    let left = area.height.saturating_sub(3 + warned + workers);
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(warned),
        Constraint::Length(workers),
        Constraint::Length((left / 2).max(LEAST_LOSSES)),
        Constraint::Min(3),
        Constraint::Length(1),
    ]);
    let [head, gauge, alarms, workers, loss, below, legend] = rows.areas(area);
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
    let warnings = Paragraph::new(warnings).style(alarm).wrap(Wrap { trim: true });
    frame.render_widget(warnings, alarms);
    frame.render_widget(workers_table(model), workers);
    draw_losses(frame, model, loss);
    frame.render_widget(generations_table(model, generations.height), generations);
    frame.render_widget(story_lines(model, story.height), story);
    let faint = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(LEGEND).style(faint), legend);
}

/// The model in one plain line.
pub(super) fn line(model: &ViewContent) -> String {
    let training = model.rows.iter().filter(|row| row.rank.is_some()).count();
    let generation = model.generations.last().map_or(0, |generation| generation.number.0);
    let mut parts = vec![
        format!("step {}/{}", model.step, model.steps),
        format!("{training} of {} workers take part", model.rows.len()),
        format!("generation {generation}"),
    ];
    parts.extend(model.losses.last().map(|loss| format!("loss {}", shown_loss(*loss))));
    parts.extend(model.tokens_per_second.map(|rate| format!("{rate:.0} tokens/s")));
    parts.extend(model.warnings.iter().cloned());
    parts.join("  ")
}

fn headline(model: &ViewContent) -> String {
    let mut parts = vec![format!("everstep demo: {}", model.run)];
    parts.extend(model.losses.last().map(|loss| format!("loss {} nats", shown_loss(*loss))));
    parts.extend(model.tokens_per_second.map(|rate| format!("{rate:.0} tokens/s")));
    parts.push(clock(model.elapsed.as_secs_f64()));
    parts.join("   ")
}

fn workers_table(model: &ViewContent) -> Table<'static> {
    let row = |(at, row): (usize, &WorkerRow)| {
        let id = row.worker.map_or("-".into(), |worker| worker.to_string());
        let rank = row.rank.map_or("-".into(), |rank| rank.to_string());
        let shards = if row.rank.is_some() { row.data_shards.to_string() } else { "-".into() };
        let (state, does, colour) = words(row);
        let mark = if at == model.chosen { ">" } else { " " };
        let style = Style::new().fg(colour);
        let style = if at == model.chosen { style.add_modifier(Modifier::BOLD) } else { style };
        let cells = [format!("{mark} {}", at + 1), row.label.clone(), id, rank, shards];
        Row::new(cells.into_iter().chain([state.into(), does.into()])).style(style)
    };
    let label = model.rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
    let widths = [
        Constraint::Length(4),
        Constraint::Length(label.clamp(9, 22) as u16),
        Constraint::Length(5),
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Min(30),
    ];
    let header = ["", "worker", "id", "rank", "shards", "state", "what it does"];
    let faint = Style::new().add_modifier(Modifier::DIM);
    Table::new(model.rows.iter().enumerate().map(row), widths)
        .header(Row::new(header).style(faint))
        .block(Block::bordered().title("workers"))
}

/// A row's state, its meaning, and its colour.
fn words(row: &WorkerRow) -> (&'static str, &'static str, Color) {
    let leads = row.rank.is_some_and(|rank| rank.0 == 0);
    match row.state {
        RowState::Starting => ("starting", "its process has just begun", Color::DarkGray),
        RowState::Paused => ("paused", "is stopped: p lets it go on", Color::Magenta),
        RowState::Seen(state) => match state {
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

/// The losses over all steps, with the values of the highest and the lowest bar, and the range of
/// steps.
fn draw_losses(frame: &mut Frame<'_>, model: &ViewContent, area: Rect) {
    let steps = format!("step 1 to {}", model.step);
    let block = Block::bordered().title("loss, nats");
    let block = block.title_bottom(Line::from(steps).right_aligned());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [axis, chart] =
        Layout::horizontal([Constraint::Length(AXIS), Constraint::Min(1)]).areas(inner);
    let bars = bars(&model.losses, chart.width as usize);
    let Some((low, high)) = range(&bars) else { return };
    let mut labels = vec![Line::default(); usize::from(axis.height)];
    if let [first, .., last] = &mut labels[..] {
        *first = Line::from(format!("{:>7}", shown_loss(high)));
        *last = Line::from(format!("{:>7}", shown_loss(low)));
    }
    frame.render_widget(Paragraph::new(labels), axis);
    let style = Style::new().fg(Color::Cyan);
    frame.render_widget(Sparkline::default().data(heights(&bars)).max(1_000).style(style), chart);
}

/// The finite losses, averaged to `width` bars, or each stretched over several.
fn bars(losses: &[f64], width: usize) -> Vec<f64> {
    let finite: Vec<f64> = losses.iter().copied().filter(|loss| loss.is_finite()).collect();
    let mean = |at: usize| {
        let first = at * finite.len() / width;
        let some = &finite[first..((at + 1) * finite.len() / width).max(first + 1)];
        some.iter().sum::<f64>() / some.len() as f64
    };
    if finite.is_empty() { Vec::new() } else { (0..width).map(mean).collect() }
}

/// The lowest and the highest bar.
fn range(bars: &[f64]) -> Option<(f64, f64)> {
    let low = bars.iter().copied().reduce(f64::min)?;
    Some((low, bars.iter().copied().reduce(f64::max)?))
}

/// The heights of the bars, in thousandths. The lowest bar has one.
fn heights(bars: &[f64]) -> Vec<u64> {
    let Some((low, high)) = range(bars) else { return Vec::new() };
    let scale = if high > low { 999.0 / (high - low) } else { 0.0 };
    bars.iter().map(|bar| 1 + ((bar - low) * scale) as u64).collect()
}

fn generations_table(model: &ViewContent, height: u16) -> Table<'static> {
    let row = |generation: &GenerationReport| {
        let cause = cause(model, generation);
        let stall = generation.stall_ms.map_or("-".into(), |ms| format!("{ms:.0} ms"));
        let members = generation.members.len().to_string();
        let cells = [generation.number.to_string(), generation.at_step.to_string(), members];
        Row::new(cells.into_iter().chain([stall, cause]))
    };
    let widths = [
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Min(13),
    ];
    let faint = Style::new().add_modifier(Modifier::DIM);
    let newest = model.generations.len().saturating_sub(height.saturating_sub(3) as usize);
    Table::new(model.generations[newest..].iter().rev().map(row), widths)
        .header(Row::new(["no.", "after", "members", "stall", "cause"]).style(faint))
        .block(Block::bordered().title("generations"))
}

/// The cause of a generation, and the workers that it is about.
fn cause(model: &ViewContent, generation: &GenerationReport) -> String {
    let cause = format!("{:?}", generation.cause).to_lowercase();
    match &generation.workers[..] {
        _ if generation.cause == Cause::Start => cause,
        [] => cause,
        [one] => {
            let called = model.names.get(one).cloned();
            format!("{cause} {}", called.unwrap_or_else(|| format!("worker {one}")))
        }
        several => format!("{cause} {} workers", several.len()),
    }
}

fn story_lines(model: &ViewContent, height: u16) -> Paragraph<'static> {
    let newest = model.story.len().saturating_sub(height.saturating_sub(2) as usize);
    let lines: Vec<Line<'static>> =
        model.story[newest..].iter().rev().map(|sentence| Line::from(sentence.clone())).collect();
    let story = Paragraph::new(lines).wrap(Wrap { trim: true });
    story.block(Block::bordered().title("what happened"))
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{Cause, Generation, NodeName, Rank, Step, WorkerId};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn row(number: u64, rank: Option<u32>, state: RowState) -> WorkerRow {
        WorkerRow {
            label: format!("worker-{number}"),
            name: NodeName::parse(&format!("node-{number}")).expect("a name"),
            pid: Some(number as u32),
            worker: Some(WorkerId(number)),
            rank: rank.map(Rank),
            data_shards: 4,
            state,
        }
    }

    fn model() -> ViewContent {
        let training = RowState::Seen(WorkerState::Training);
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
        ViewContent {
            run: "tiny".into(),
            steps: 200,
            step: 60,
            losses: (0..60).map(|step| 5.5 - f64::from(step) / 20.0).collect(),
            tokens_per_second: Some(5_123.4),
            rows: vec![row(1, Some(0), training), row(2, None, RowState::Paused)],
            chosen: 1,
            generations: vec![generation],
            warnings: vec!["under-protected: 85 parameter shards".into()],
            story: vec!["lost worker 9: closed".into()],
            ..ViewContent::default()
        }
    }

    fn screen(model: &ViewContent, width: u16, height: u16) -> String {
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
            "lost worker 9",
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
            screen(&ViewContent::default(), width, height);
        }
    }

    #[test]
    fn losses_fill_the_width_and_what_is_not_finite_is_left_out() {
        let shown = |losses: &[f64], width| heights(&bars(losses, width));
        assert_eq!(shown(&[3.0, 2.0, f64::NAN, 1.0], 6), [1_000, 1_000, 500, 500, 1, 1]);
        assert_eq!(shown(&[4.0, 2.0, 1.0, 1.0], 2), [1_000, 1]);
        assert_eq!(shown(&[2.0, 2.0], 3), [1, 1, 1]);
        assert_eq!((shown(&[], 10), shown(&[1.0], 0)), (vec![], vec![]));
    }

    /// A demo of four workers under way, with long values in all fields.
    fn busy() -> ViewContent {
        let training = RowState::Seen(WorkerState::Training);
        let mut rows = vec![row(1, Some(0), training), row(2, None, RowState::Paused)];
        rows.extend([row(3, Some(1), training), row(4, Some(2), training)]);
        let lost = GenerationReport { cause: Cause::Lost, ..model().generations[0].clone() };
        let start = GenerationReport {
            cause: Cause::Start,
            workers: (1..=4).map(WorkerId).collect(),
            ..lost.clone()
        };
        let names = [(WorkerId(9), "worker-5".to_string())].into();
        let story = vec![
            "0:12 you kill worker-5".into(),
            "0:12 lost worker-5: its process was killed (signal 9)".into(),
        ];
        ViewContent { rows, generations: vec![start, lost], names, story, ..model() }
    }

    #[test]
    fn everything_is_whole_on_80_columns_and_24_lines() {
        let shown = screen(&busy(), 80, 24);
        let columns = ["loss, nats", "5.500", "2.550", "step 1 to 60", "lost worker-5", "start"];
        let states = ["computes, and leads the steps", "is stopped: p lets it go on"];
        let told = ["0:12 you kill worker-5", "killed", "(signal 9)", "141 ms", LEGEND];
        for words in columns.iter().chain(&states).chain(&told) {
            assert!(shown.contains(words), "no \"{words}\" in\n{shown}");
        }
    }

    #[test]
    fn a_large_screen_is_full() {
        let shown = screen(&busy(), 200, 60);
        let bars = shown.lines().filter(|line| line.contains('█')).count();
        assert!(bars >= 20, "the losses are {bars} lines high in\n{shown}");
        let widest = shown.lines().map(|line| line.matches('█').count()).max();
        assert!(widest > Some(150), "the losses do not fill the width:\n{shown}");
        for words in ["lost worker-5: its process was killed (signal 9)", LEGEND] {
            assert!(shown.contains(words), "no \"{words}\" in\n{shown}");
        }
    }

    #[test]
    fn a_plain_line_says_the_same() {
        let line = line(&model());
        let words = "step 60/200  1 of 2 workers take part  generation 2  loss 2.550";
        assert!(line.starts_with(words), "{line}");
        assert!(line.ends_with("under-protected: 85 parameter shards"), "{line}");
    }
}
