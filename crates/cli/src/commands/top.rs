//! `top`: `status` and `sessions`, drawn anew every second until `q` is pressed.
//!
//! ```text
//! look (bounded) ─▶ draw ─▶ wait for a key, one interval at most ─▶ look …
//! ```
//! What cannot be read is shown in place of what was, and the next look tries again: a live view does not end because etcd
//! elects a leader. No line is longer than the terminal is wide, and the last line says how many more there are below. The
//! terminal is given back however the command ends, except for SIGKILL.

use std::io::Stdout;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::{Constraint, Layout};
use ratatui::prelude::CrosstermBackend;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Clear, Paragraph};
use ratatui::{Frame, Terminal};
use serde_json::Value;
use tensorhold_core::ErrorKind;

use tensorhold_steward::recent::Recent;

use super::{Context, sessions, status};
use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, Output, wrapped};
use crate::reach::Reach;

/// The shortest interval: every look costs etcd a few reads.
const SHORTEST: Duration = Duration::from_millis(200);

/// What is on the screen.
#[derive(Debug, Default)]
struct View {
    title: String,
    body: String,
    scroll: u16,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Quit,
    Up,
    Down,
    Nothing,
}

pub(crate) async fn run(
    reach: &Reach,
    every: Duration,
    within: Duration,
    context: &Context<'_>,
) -> Result<Answer, Failure> {
    if !context.output.terminal {
        return Err(Failure::usage(
            "top needs a terminal",
            "its output goes somewhere else",
            "`tensorhold status --json` is for programs",
        ));
    }
    let every = every.max(SHORTEST);
    let mut screen = Screen::open().map_err(|error| no_terminal(&error))?;
    let mut view = View::default();
    let mut recent = Recent::default();
    loop {
        let width = screen.width().map_err(|error| no_terminal(&error))?;
        view.body = look(&reach.renewed(within), width, &mut recent, context).await;
        view.title = title(&reach.settings.etcd_shown(), every, width);
        // Waiting for a key blocks the thread; the other threads of the command go on.
        let asked =
            tokio::task::block_in_place(|| screen.show(&mut view, every)).map_err(|error| no_terminal(&error))?;
        if asked == Asked::Quit {
            drop(screen);
            return Ok(Answer::new(Value::Null, ""));
        }
    }
}

fn no_terminal(error: &std::io::Error) -> Failure {
    Failure::new(
        ErrorKind::Unavailable,
        "the terminal cannot be used",
        error.to_string(),
        "`tensorhold status` needs none",
    )
}

/// As much as there is room for; how to quit first.
fn title(etcd: &str, every: Duration, width: u16) -> String {
    let parts = [
        " tensorhold top",
        "q quits",
        etcd,
        &format!("every {} ms", every.as_millis()),
    ];
    let mut title = String::new();
    for part in parts {
        if title.chars().count() + 3 + part.chars().count() <= usize::from(width) {
            title.push_str(if title.is_empty() { "" } else { "   " });
            title.push_str(part);
        }
    }
    title
}

/// What `status` and `sessions` say now, and how fast it changes; without colours, which are the screen's.
async fn look(reach: &Reach, width: u16, recent: &mut Recent<status::Figures>, context: &Context<'_>) -> String {
    let context = Context {
        host: context.host,
        output: Output {
            colour: false,
            width: Some(width),
            ..context.output
        },
        now_ms: (context.host.now_ms)(),
    };
    let mut nobody = std::io::sink();
    let mut silent = Progress::new(&mut nobody, false);
    let width = usize::from(width);
    let mut text = match status::look_and_compare(reach, &context, Some(recent), &mut silent).await {
        Ok(answer) => answer.text,
        Err(failure) => return wrapped(&failure.text(false), width),
    };
    // Of several stores none is meant; `--store` names one.
    if let Ok(answer) = sessions::run(reach, &context, &mut silent).await {
        text.push('\n');
        text.push_str(&answer.text);
    }
    wrapped(&text, width)
}

fn asked(event: &Event) -> Asked {
    match event {
        Event::Key(KeyEvent {
            kind: KeyEventKind::Release,
            ..
        }) => Asked::Nothing,
        Event::Key(KeyEvent { code, modifiers, .. }) => match code {
            KeyCode::Char('q') | KeyCode::Esc => Asked::Quit,
            // The terminal sends no signal while keys are read one by one.
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Asked::Quit,
            KeyCode::Up | KeyCode::Char('k') => Asked::Up,
            KeyCode::Down | KeyCode::Char('j') => Asked::Down,
            _ => Asked::Nothing,
        },
        _ => Asked::Nothing,
    }
}

fn draw(frame: &mut Frame<'_>, view: &View) {
    let [top, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(frame.area());
    let bar = Style::default().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(Line::from(view.title.as_str())).style(bar), top);
    frame.render_widget(Paragraph::new(view.body.as_str()).scroll((view.scroll, 0)), rest);
    let lines = view.body.lines().count();
    let below = lines.saturating_sub(usize::from(view.scroll) + usize::from(rest.height));
    if below > 0 && rest.height > 0 {
        // The line that it covers is one of those.
        let [_, last] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(rest);
        let more = format!(" {} more lines: ↓ ", below + 1);
        frame.render_widget(Clear, last);
        frame.render_widget(Paragraph::new(Line::from(more)).style(bar), last);
    }
}

/// The terminal while it is ours.
struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    fn open() -> std::io::Result<Self> {
        enable_raw_mode()?;
        let mut out = std::io::stdout();
        let entered = execute!(out, EnterAlternateScreen).and_then(|()| Terminal::new(CrosstermBackend::new(out)));
        if entered.is_err() {
            drop(disable_raw_mode());
        }
        entered.map(Self)
    }

    fn width(&self) -> std::io::Result<u16> {
        Ok(self.0.size()?.width)
    }

    /// Draws, and waits for a key for one interval at most.
    fn show(&mut self, view: &mut View, every: Duration) -> std::io::Result<Asked> {
        let lines = u16::try_from(view.body.lines().count()).unwrap_or(u16::MAX);
        self.0.draw(|frame| draw(frame, view))?;
        if !event::poll(every)? {
            return Ok(Asked::Nothing);
        }
        let asked = asked(&event::read()?);
        match asked {
            Asked::Up => view.scroll = view.scroll.saturating_sub(1),
            Asked::Down => view.scroll = (view.scroll + 1).min(lines.saturating_sub(1)),
            Asked::Quit | Asked::Nothing => {}
        }
        Ok(asked)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing more can be done for a terminal that is gone.
        drop(disable_raw_mode());
        drop(execute!(self.0.backend_mut(), LeaveAlternateScreen));
        drop(self.0.show_cursor());
    }
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn the_title_is_above_and_the_rest_scrolls() {
        let mut terminal = Terminal::new(TestBackend::new(12, 3)).expect("a terminal");
        let mut view = View {
            title: " top ".to_owned(),
            body: "one\ntwo\nthree".to_owned(),
            scroll: 0,
        };
        terminal.draw(|frame| draw(frame, &view)).expect("drawn");
        let shown = terminal.backend().to_string();
        assert!(
            shown.contains("top") && shown.contains("one") && !shown.contains("three"),
            "{shown}"
        );
        view.scroll = 1;
        terminal.draw(|frame| draw(frame, &view)).expect("drawn");
        let shown = terminal.backend().to_string();
        assert!(!shown.contains("one") && shown.contains("three"), "{shown}");
    }

    #[test]
    fn what_has_no_room_is_said_to_be_there() {
        let mut terminal = Terminal::new(TestBackend::new(24, 4)).expect("a terminal");
        let mut view = View {
            title: " top ".to_owned(),
            body: "one\ntwo\nthree\nfour\nfive".to_owned(),
            scroll: 0,
        };
        terminal.draw(|frame| draw(frame, &view)).expect("drawn");
        let shown = terminal.backend().to_string();
        assert!(shown.contains("two") && shown.contains("3 more lines"), "{shown}");
        view.scroll = 2;
        terminal.draw(|frame| draw(frame, &view)).expect("drawn");
        let shown = terminal.backend().to_string();
        assert!(shown.contains("five") && !shown.contains("more lines"), "{shown}");
    }

    #[test]
    fn a_narrow_title_says_how_to_quit() {
        let title = |width| {
            title(
                "http://10.20.30.40:2379,http://10.20.30.41:2379",
                Duration::from_secs(1),
                width,
            )
        };
        assert!(title(60).contains("q quits") && title(60).len() <= 60, "{}", title(60));
        let all = title(200);
        assert!(all.contains("10.20.30.41") && all.contains("every 1000 ms"), "{all}");
    }

    #[test]
    fn q_escape_and_control_c_quit() {
        let key = |code, modifiers| asked(&Event::Key(KeyEvent::new(code, modifiers)));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Asked::Quit);
        assert_eq!(key(KeyCode::Esc, KeyModifiers::NONE), Asked::Quit);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Asked::Quit);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), Asked::Nothing);
        assert_eq!(key(KeyCode::Down, KeyModifiers::NONE), Asked::Down);
        assert_eq!(asked(&Event::Resize(1, 1)), Asked::Nothing);
    }
}
