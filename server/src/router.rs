//! Builds routers from the route tables.

pub use axum::Router;

use crate::app::Shared;
use crate::guard::{AccessPolicy, guarded};
use crate::openapi::OPENAPI_ROUTES;
use crate::routes::{PAGE, ROUTES, Route};

/// Returns the complete router of a single model.
pub fn router(app: Shared, mut policy: AccessPolicy) -> Router {
    if !app.reads_files() {
        policy.media_bytes = 0;
    }
    guarded(with_page(model_routes(app), &policy), policy)
}

/// Returns the routes of a model, without authentication and the other checks that apply to every request.
pub fn model_routes(app: Shared) -> Router {
    with(with(Router::new(), ROUTES), OPENAPI_ROUTES).with_state(app)
}

/// Adds the web UI unless the policy disables it.
pub fn with_page(routes: Router, policy: &AccessPolicy) -> Router {
    if policy.page { with(routes, PAGE) } else { routes }
}

/// Adds the routes of a table.
pub fn with<S: Clone + Send + Sync + 'static>(mut router: Router<S>, routes: &[Route<S>]) -> Router<S> {
    for route in routes {
        for path in route.paths {
            router = router.route(path, (route.router)());
        }
    }
    router
}
