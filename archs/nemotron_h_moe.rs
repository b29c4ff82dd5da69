//! Nemotron H with experts: the declaration of Nemotron H under a name of its own.

arch_macros::arch! {
    name: "nemotron_h_moe";
    like: "nemotron_h";
}
