//! Nemotron H with experts: the graph of Nemotron H under a separate architecture name.

arch_macros::arch! {
    name: "nemotron_h_moe";
    like: "nemotron_h";
}
