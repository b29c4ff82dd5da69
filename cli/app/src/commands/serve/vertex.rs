//! Settings of Google's Vertex AI, which configures containers by environment variables.

use server::vertex::Vertex;
use tracing::info;

use crate::failure::{Failure, Outcome};

/// Reads the variables `AIP_…`, which are set if Vertex AI runs the server, and sets `port`.
pub fn of_environment(port: &mut u16) -> Outcome<Option<Vertex>> {
    settings(port, |name| std::env::var(name).unwrap_or_default())
}

fn settings(port: &mut u16, variable: impl Fn(&str) -> String) -> Outcome<Option<Vertex>> {
    if variable("AIP_MODE") != "PREDICTION" {
        return Ok(None);
    }
    let wanted = variable("AIP_HTTP_PORT");
    if !wanted.is_empty() {
        *port = wanted
            .parse()
            .map_err(|_| Failure::new(format_args!("AIP_HTTP_PORT: expected a port, found {wanted:?}")))?;
    }
    let predict = match variable("AIP_PREDICT_ROUTE") {
        route if route.is_empty() => "/predict".to_owned(),
        route => route,
    };
    let vertex = Vertex::new(&predict, &variable("AIP_HEALTH_ROUTE"));
    let vertex = vertex.map_err(|e| Failure::new(format_args!("AIP_PREDICT_ROUTE and AIP_HEALTH_ROUTE: {e}")))?;
    info!("Vertex AI (AIP_MODE): predictions at {predict}, port {port}");
    Ok(Some(vertex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vertex_settings_come_from_variables() {
        let read = |pairs: &[(&str, &str)]| {
            let mut port = 8080;
            let value = |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
            let vertex = settings(&mut port, |name| value(name).unwrap_or_default().to_owned());
            vertex.map(|vertex| (vertex, port)).map_err(|e| match e {
                Failure::Message(text) => text,
                other => format!("{other:?}"),
            })
        };
        assert_eq!(read(&[("AIP_HTTP_PORT", "7")]), Ok((None, 8080)));
        let on = ("AIP_MODE", "PREDICTION");
        let predict = Vertex::new("/predict", "").unwrap();
        assert_eq!(
            read(&[on, ("AIP_HTTP_PORT", "7080")]),
            Ok((Some(predict.clone()), 7080))
        );
        assert_eq!(read(&[on]), Ok((Some(predict), 8080)));
        let wrong = read(&[on, ("AIP_HTTP_PORT", "x")]).unwrap_err();
        assert!(wrong.contains("AIP_HTTP_PORT") && wrong.contains("\"x\""), "{wrong}");
        let taken = read(&[on, ("AIP_PREDICT_ROUTE", "/v1/models")]).unwrap_err();
        assert!(taken.contains("AIP_PREDICT_ROUTE"), "{taken}");
    }
}
