//! Responses of late, which requests can go on from.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::Value as Json;

use crate::http::Client;

/// Responses that are kept.
const MAX_KEPT: usize = 512;
/// Bytes of them, as JSON.
const MAX_LEN: usize = 64 << 20;

/// Responses, the oldest first to go.
#[derive(Default)]
pub struct Kept {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    all: VecDeque<One>,
    len: usize,
}

struct One {
    client: Client,
    id: String,
    len: usize,
    kept: KeptResponse,
}

/// What is kept of a response.
#[derive(Clone, Debug)]
pub struct KeptResponse {
    /// The messages of the conversation, the answer the last one.
    pub said: Vec<Json>,
    /// As it was told.
    pub response: Json,
}

impl Kept {
    /// Keeps a response, if it is not too large by itself.
    pub fn keep(&self, client: Client, id: &str, said: Vec<Json>, response: Json) {
        let len = response.to_string().len() + said.iter().map(|m| m.to_string().len()).sum::<usize>();
        if len > MAX_LEN {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.len += len;
        let kept = KeptResponse { said, response };
        state.all.push_back(One {
            client,
            id: id.to_owned(),
            len,
            kept,
        });
        while state.all.len() > MAX_KEPT || state.len > MAX_LEN {
            let Some(oldest) = state.all.pop_front() else { break };
            state.len -= oldest.len;
        }
    }

    /// The response of an id, if it is the client's own.
    pub fn get(&self, client: Client, id: &str) -> Option<KeptResponse> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let found = state.all.iter().find(|one| one.client == client && one.id == id);
        found.map(|one| one.kept.clone())
    }

    /// Forgets one; true if there was one.
    pub fn remove(&self, client: Client, id: &str) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = state.all.iter().position(|one| one.client == client && one.id == id) else {
            return false;
        };
        if let Some(one) = state.all.remove(at) {
            state.len -= one.len;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_go_and_others_do_not_see_them() {
        let kept = Kept::default();
        for i in 0..MAX_KEPT + 2 {
            kept.keep(Client(1), &format!("r{i}"), Vec::new(), json!({ "i": i }));
        }
        assert!(kept.get(Client(1), "r1").is_none());
        assert_eq!(kept.get(Client(1), "r2").unwrap().response["i"], 2);
        assert!(kept.get(Client(2), "r2").is_none() && !kept.remove(Client(2), "r2"));
        assert!(kept.remove(Client(1), "r2") && !kept.remove(Client(1), "r2"));
        let large = Json::from("a".repeat(MAX_LEN / 2));
        for id in ["x", "y"] {
            kept.keep(Client(1), id, vec![large.clone()], json!({}));
        }
        assert!(kept.get(Client(1), "x").is_none() && kept.get(Client(1), "y").is_some());
        kept.keep(Client(1), "z", vec![large.clone(), large], json!({}));
        assert!(kept.get(Client(1), "z").is_none() && kept.get(Client(1), "y").is_some());
    }
}
