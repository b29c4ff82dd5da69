//! Recent responses, which later requests can continue.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::Value as Json;

use crate::http::Client;

/// Maximum number of stored responses.
const MAX_RESPONSES: usize = 512;
/// Maximum total size of stored responses in bytes of JSON.
const MAX_LEN: usize = 64 << 20;
/// Maximum number of responses whose events are stored.
const MAX_EVENTS: usize = 32;

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
    /// Input items of the request.
    pub input: Vec<Json>,
    /// Server-sent events of the response; `None` if they were dropped.
    pub events: Option<String>,
    /// The response as returned to the client.
    pub response: Json,
}

impl StoredResponse {
    /// Returns the size in bytes of JSON.
    fn len(&self) -> usize {
        let of_all = |list: &[Json]| list.iter().map(|value| value.to_string().len()).sum::<usize>();
        let events = self.events.as_ref().map_or(0, String::len);
        self.response.to_string().len() + of_all(&self.history) + of_all(&self.input) + events
    }
}

impl ResponseStore {
    /// Stores a response unless it exceeds the size limit. The events of older responses are dropped.
    pub fn insert(&self, client: Client, id: &str, stored: StoredResponse) {
        let len = stored.len();
        if len > MAX_LEN {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        state.len += len;
        state.all.push_back(Entry {
            client,
            id: id.to_owned(),
            len,
            stored,
        });
        if let Some(at) = state.all.len().checked_sub(MAX_EVENTS + 1) {
            let events = state.all[at].stored.events.take();
            let n_freed = events.map_or(0, |events| events.len());
            state.all[at].len -= n_freed;
            state.len -= n_freed;
        }
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

    /// Returns the output or input item with this id in a response of `client`.
    pub fn item(&self, client: Client, id: &str) -> Option<Json> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A client refers to recent items most often.
        let of_client = state.all.iter().rev().filter(|one| one.client == client);
        let mut items = of_client.flat_map(|one| {
            let output = one.stored.response["output"].as_array();
            output.into_iter().flatten().chain(&one.stored.input)
        });
        items.find(|item| item["id"] == id).cloned()
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

    fn stored(history: Vec<Json>, response: Json) -> StoredResponse {
        StoredResponse {
            history,
            input: Vec::new(),
            events: Some("data: x\n\n".to_owned()),
            response,
        }
    }

    #[test]
    fn items_are_found_by_client_and_old_events_are_dropped() {
        let store = ResponseStore::default();
        for i in 0..=MAX_EVENTS {
            let mut one = stored(Vec::new(), json!({ "output": [{ "id": format!("out{i}") }] }));
            one.input.push(json!({ "id": format!("in{i}") }));
            store.insert(Client(1), &format!("r{i}"), one);
        }
        assert!(
            ["out0", "in0", "out7"]
                .iter()
                .all(|id| store.item(Client(1), id).is_some())
        );
        assert!(store.item(Client(2), "out0").is_none() && store.item(Client(1), "r0").is_none());
        let events = |id: &str| store.get(Client(1), id).unwrap().events;
        assert_eq!((events("r0"), events("r1").is_some()), (None, true));
        let state = store.state.lock().unwrap();
        assert_eq!(state.len, state.all.iter().map(|one| one.stored.len()).sum::<usize>());
    }

    #[test]
    fn store_evicts_oldest_and_isolates_clients() {
        let store = ResponseStore::default();
        for i in 0..MAX_RESPONSES + 2 {
            store.insert(Client(1), &format!("r{i}"), stored(Vec::new(), json!({ "i": i })));
        }
        assert!(store.get(Client(1), "r1").is_none());
        assert_eq!(store.get(Client(1), "r2").unwrap().response["i"], 2);
        assert!(store.get(Client(2), "r2").is_none() && !store.remove(Client(2), "r2"));
        assert!(store.remove(Client(1), "r2") && !store.remove(Client(1), "r2"));
        let large = Json::from("a".repeat(MAX_LEN / 2));
        for id in ["x", "y"] {
            store.insert(Client(1), id, stored(vec![large.clone()], json!({})));
        }
        assert!(store.get(Client(1), "x").is_none() && store.get(Client(1), "y").is_some());
        store.insert(Client(1), "z", stored(vec![large.clone(), large], json!({})));
        assert!(store.get(Client(1), "z").is_none() && store.get(Client(1), "y").is_some());
    }
}
