//! Policies whose expressions take long.

use std::sync::Mutex;
use std::sync::mpsc::sync_channel;

use drydock_machinery::policy_expression::THREADS;
use futures_util::future::join_all;

use super::applied::context;
use super::*;
use crate::admission::policy::evaluation;
use crate::admission::policy::lane::Lane;
use crate::fixtures::FakeHost;
use crate::host::AuthenticationConfig;

/// However many writes meet a policy that does not end, others are evaluated.
#[tokio::test]
async fn a_policy_that_takes_long_delays_only_the_writes_that_it_is_for() {
    let (context, _) = context(&FakeHost::new(AuthenticationConfig::default()));
    let (costly, other) = (Lane::of_one(), Lane::of_one());
    let user = Arc::default();
    let (end, told) = sync_channel::<()>(1);
    let told = Arc::new(Mutex::new(told));
    let slow = join_all((0..4 * THREADS).map(async |_| {
        let told = Arc::clone(&told);
        let work = move |_: &Decisions| Ok(told.lock().unwrap().recv().is_err());
        evaluation::run(&context, &costly, &user, &mut Arc::default(), work).await
    }));
    let fast = async {
        for _ in 0..THREADS {
            let found = evaluation::run(&context, &other, &user, &mut Arc::default(), |_| Ok(7)).await;
            assert_eq!(found.unwrap(), 7);
        }
        drop(end);
    };
    let (slow, ()) = tokio::join!(slow, fast);
    assert!(slow.into_iter().all(|ended| ended.unwrap()));
}
