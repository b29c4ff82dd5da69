//! The parent architecture does not exist.

arch_macros::arch! {
    name: "tiny";
    like: "no-such";
    rope: norm;
}

fn main() {}
