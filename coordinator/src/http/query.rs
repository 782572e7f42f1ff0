//! The query of a request: where to go on, and whether a stale answer will do.

use super::problem::HttpProblem;

/// `?after=NUMBER&stale=true`. Each part is optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueryParams {
    /// The number of the newest item that the client has. 0 for none.
    pub(super) after: u64,
    /// Whether the client takes this coordinator's knowledge, which may be out of date.
    pub(super) stale: bool,
}

impl QueryParams {
    /// Reads the query of a page.
    pub(super) fn of_page(query: &str) -> Result<Self, HttpProblem> {
        let next = "ask with ?after=NUMBER, with ?stale=true, with both, or without a query";
        Self::parse(query).ok_or_else(|| HttpProblem::bad("the query is not understood", next))
    }

    /// Reads any other query.
    pub(super) fn of_whole(query: &str) -> Result<Self, HttpProblem> {
        let next = "ask with ?stale=true, or without a query";
        let whole = Self::parse(query).filter(|_| !query.contains("after="));
        whole.ok_or_else(|| HttpProblem::bad("the query is not understood", next))
    }

    fn parse(query: &str) -> Option<Self> {
        let (mut after, mut stale) = (None, None);
        for part in query.split('&').filter(|_| !query.is_empty()) {
            let (slot, value): (&mut Option<u64>, _) = match part.split_once('=')? {
                ("after", number) => (&mut after, number.parse().ok()?),
                ("stale", "true") => (&mut stale, 1),
                ("stale", "false") => (&mut stale, 0),
                _ => return None,
            };
            if slot.replace(value).is_some() {
                return None;
            }
        }
        Some(Self { after: after.unwrap_or(0), stale: stale == Some(1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_where_to_go_on_and_how_new_the_answer_must_be_or_is_refused() {
        let page = |query| QueryParams::of_page(query).ok();
        assert_eq!(page(""), Some(QueryParams::default()));
        assert_eq!(page("after=17"), Some(QueryParams { after: 17, stale: false }));
        assert_eq!(page("stale=true&after=17"), Some(QueryParams { after: 17, stale: true }));
        assert_eq!(page("stale=false"), Some(QueryParams::default()));
        for query in
            ["after=", "after=-1", "after=x", "before=1", "after=1&after=2", "x", "stale", "&"]
        {
            let problem = QueryParams::of_page(query).expect_err(query);
            assert_eq!(problem.status.as_u16(), 400, "{query}");
        }
        assert_eq!(QueryParams::of_whole("stale=true"), Ok(QueryParams { after: 0, stale: true }));
        assert!(QueryParams::of_whole("after=1").is_err());
    }
}
