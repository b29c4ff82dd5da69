//! A chat in the terminal with the library.
//!
//!     cargo run --release -p llama --example chat -- qwen3:0.6b

use std::io::{self, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("usage: chat MODEL")?;
    let model = llama::Model::options()
        .on_download(|event| {
            if let llama::hub::Event::Download { name, n_bytes } = event {
                eprintln!("downloading {name}: {} MiB", n_bytes >> 20);
            }
        })
        .open(name)?;
    let mut chat = model.chat().start()?;
    for question in io::stdin().lines() {
        let mut response = chat.ask(question?)?;
        for piece in &mut response {
            print!("{}", piece?);
            io::stdout().flush()?;
        }
        println!();
        eprintln!("{:.1} tokens/s", response.stats().generation_speed());
    }
    Ok(())
}
