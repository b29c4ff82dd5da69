//! A pseudo-terminal that runs the binary.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

const ROWS: u16 = 24;
const COLUMNS: u16 = 120;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The controlling end of a pseudo-terminal, and the process at its other end.
pub struct Terminal {
    child: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    shown: vt100::Parser,
}

impl Terminal {
    /// Starts a process on a new pseudo-terminal.
    pub fn start(mut command: Command) -> Terminal {
        let size = libc::winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let (mut near, mut far) = (0, 0);
        // SAFETY: both descriptors are valid for writes, the size is valid for reads, and null is allowed for
        // name and settings.
        let status = unsafe { libc::openpty(&mut near, &mut far, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(status, 0, "a pseudo-terminal");
        // SAFETY: `openpty` returned both descriptors, and nothing else owns them.
        let (near, far) = unsafe { (OwnedFd::from_raw_fd(near), OwnedFd::from_raw_fd(far)) };
        let copy = |fd: &OwnedFd| fd.try_clone().expect("duplicating a descriptor succeeds");
        command.stdin(copy(&far)).stdout(copy(&far)).stderr(far);
        // SAFETY: `setsid` and `ioctl` are async-signal-safe. They make the terminal the controlling
        // terminal, whose keys send signals.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().expect("the binary runs");
        // `command` owns copies of the far end, which would keep reads from ending.
        drop(command);
        let mut output = File::from(copy(&near));
        let (sender, screen) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal {
            child,
            keys: near.into(),
            screen,
            seen: String::new(),
            shown: vt100::Parser::new(
                NonZero::new(ROWS).expect("rows"),
                NonZero::new(COLUMNS).expect("columns"),
                0,
            ),
        }
    }

    /// Returns the screen without trailing blanks. Styled text is enclosed in `«b:` and `»`, with `b` bold, `i` italic,
    /// `d` dim, `c` cyan, and `m` magenta.
    pub fn screen(&self) -> String {
        let screen = self.shown.screen();
        let mut text = String::new();
        for row in 0..ROWS {
            let (mut style, mut line) = (String::new(), String::new());
            for column in 0..COLUMNS {
                let cell = screen.cell(row, column).expect("the cell is on the screen");
                let now = style_of(cell);
                if now != style {
                    line += if style.is_empty() { "" } else { "»" };
                    line += &if now.is_empty() {
                        String::new()
                    } else {
                        format!("«{now}:")
                    };
                    style = now;
                }
                if !cell.is_wide_continuation() {
                    line += if cell.has_contents() { cell.contents() } else { " " };
                }
            }
            text += line.trim_end();
            text += if style.is_empty() { "\n" } else { "»\n" };
        }
        text.truncate(text.trim_end().len());
        text
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal is open");
    }

    /// Waits for `text` and returns the output up to and including it.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => {
                    self.shown.process(&bytes);
                    self.seen.push_str(&String::from_utf8_lossy(&bytes));
                }
                Err(_) => panic!("{text:?} did not appear; output: {:?}", self.seen),
            }
        }
    }

    /// Waits for the process to exit.
    #[track_caller]
    pub fn end(mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => return status,
                None if Instant::now() > deadline => {
                    let _ = self.child.kill();
                    panic!("the process did not exit; output: {:?}", self.seen);
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

fn style_of(cell: &vt100::Cell) -> String {
    let marks = [
        (cell.bold(), 'b'),
        (cell.italic(), 'i'),
        (cell.dim(), 'd'),
        (cell.fgcolor() == vt100::Color::Idx(6), 'c'),
        (cell.fgcolor() == vt100::Color::Idx(5), 'm'),
    ];
    marks.iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect()
}
