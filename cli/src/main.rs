//! The program `llama`. The crate [`app`] implements its commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    app::main()
}
