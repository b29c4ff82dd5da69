//! Recent responses, which later requests can continue.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::Value as Json;

use crate::http::Client;

/// Maximum number of stored responses.
const MAX_RESPONSES: usize = 512;
/// Maximum total size of stored responses in bytes of JSON.
const MAX_LEN: usize = 64 << 20;

/// Stored responses. The oldest response is dropped first.
#[derive(Default)]
pub struct ResponseStore {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    all: VecDeque<Entry>,
    len: usize,
}

struct Entry {
    client: Client,
    id: String,
    len: usize,
    stored: StoredResponse,
}

/// A stored response.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    /// Messages of the conversation, ending with the response.
    pub history: Vec<Json>,
    /// The response as returned to the client.
    pub response: Json,
}

impl ResponseStore {
    /// Stores a response unless it exceeds the size limit.
    pub fn insert(&self, client: Client, id: &str, history: Vec<Json>, response: Json) {
        let len = response.to_string().len() + history.iter().map(|m| m.to_string().len()).sum::<usize>();
        if len > MAX_LEN {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.len += len;
        let stored = StoredResponse { history, response };
        state.all.push_back(Entry {
            client,
            id: id.to_owned(),
            len,
            stored,
        });
        while state.all.len() > MAX_RESPONSES || state.len > MAX_LEN {
            let Some(oldest) = state.all.pop_front() else { break };
            state.len -= oldest.len;
        }
    }

    /// Returns the response with this id if it belongs to `client`.
    pub fn get(&self, client: Client, id: &str) -> Option<StoredResponse> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let found = state.all.iter().find(|one| one.client == client && one.id == id);
        found.map(|one| one.stored.clone())
    }

    /// Deletes a response; returns true if it existed.
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
    fn store_evicts_oldest_and_isolates_clients() {
        let stored = ResponseStore::default();
        for i in 0..MAX_RESPONSES + 2 {
            stored.insert(Client(1), &format!("r{i}"), Vec::new(), json!({ "i": i }));
        }
        assert!(stored.get(Client(1), "r1").is_none());
        assert_eq!(stored.get(Client(1), "r2").unwrap().response["i"], 2);
        assert!(stored.get(Client(2), "r2").is_none() && !stored.remove(Client(2), "r2"));
        assert!(stored.remove(Client(1), "r2") && !stored.remove(Client(1), "r2"));
        let large = Json::from("a".repeat(MAX_LEN / 2));
        for id in ["x", "y"] {
            stored.insert(Client(1), id, vec![large.clone()], json!({}));
        }
        assert!(stored.get(Client(1), "x").is_none() && stored.get(Client(1), "y").is_some());
        stored.insert(Client(1), "z", vec![large.clone(), large], json!({}));
        assert!(stored.get(Client(1), "z").is_none() && stored.get(Client(1), "y").is_some());
    }
}
