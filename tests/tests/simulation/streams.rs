//! The summary streams: routers that open, read and lose them, as the router's `subscriber` and `members` do.

use std::time::Duration;

use warmpath_common::summary::{FRAME_BYTES_MAX, Loading, Stamp};
use warmpath_router::config::{SUMMARY_IDLE_MAX, SUMMARY_IDLE_MIN};
use warmpath_router::fleet::TrackerMessage;
use warmpath_router::fleet::subscriber::{self, StreamError};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::membership::{DiscoveredWorker, MembershipChange};
use warmpath_router_core::fleet::summary_reader::FrameEffect;
use warmpath_router_core::fleet::summary_stream::SummaryStream;
use warmpath_worker_core::reports::summary_writer::HEARTBEAT;

use super::connection::{Arrival, Connection, Damage, Subscriber};
use super::router::{Report, Router, STREAM_LIMITS, Shown, Subscription, watch};
use super::world::{DialFailure, Event, WorkerProcess, World};

/// Reports that the tracker applies at once.
const BATCH_MAX: usize = 64;

impl World {
    /// Starts a router's process.
    pub fn start_router(&mut self, idx: usize) {
        self.routers[idx].boot += 1;
        let seed = self.rng.below(1 << 30) as u64;
        self.routers[idx].router = Some(Box::new(Router::new(&self.clients, seed, self.now)));
        let boot = self.routers[idx].boot;
        self.after(0..5, Event::Discover { router: idx, boot });
    }

    /// Returns a router if this is its current boot.
    pub fn router_mut(&mut self, idx: usize, boot: u64) -> Option<&mut Router> {
        let host = &mut self.routers[idx];
        if host.boot == boot { host.router.as_deref_mut() } else { None }
    }

    /// Returns the subscription of an attempt, if the attempt is the current one.
    fn subscription_mut(&mut self, subscriber: Subscriber) -> Option<&mut Subscription> {
        let router = self.router_mut(subscriber.router, subscriber.boot)?;
        let subscription = router.subscriptions.get_mut(&subscriber.worker)?;
        (subscription.attempt == subscriber.attempt).then_some(subscription)
    }

    /// Compares a router's members with discovery.
    pub fn discover(&mut self, idx: usize, boot: u64) {
        let listed = self.hosts.iter().enumerate().filter(|(_, host)| host.is_listed);
        let found: Vec<_> = listed.map(|(address, _)| DiscoveredWorker { address, is_ending: false }).collect();
        let (now, clients) = (self.now, self.clients.clone());
        let Some(router) = self.router_mut(idx, boot) else { return };
        let fleet = router.fleet.clone();
        let update = router.membership.update(&found, now, |worker| fleet.ledger().sent.n_in_flight(worker) == 0);
        let mut joined = Vec::new();
        for change in update.changes {
            let report = match change {
                MembershipChange::Joined { worker, address } => {
                    router.join((worker, address), &clients, now);
                    joined.push(worker);
                    continue;
                }
                MembershipChange::Leaving { worker } => Report::plain(TrackerMessage::Leaving { worker }),
                MembershipChange::Stayed { worker } => Report::plain(TrackerMessage::Stayed { worker }),
                MembershipChange::Left { worker } => {
                    router.subscriptions.remove(&worker);
                    let shows = Some((worker, Shown::Nothing));
                    Report { shows, ..Report::plain(TrackerMessage::Left { worker }) }
                }
            };
            router.inbox.push_back(report);
        }
        for worker in joined {
            self.open(Subscriber { router: idx, boot, worker, attempt: 0 });
        }
        self.want_track(idx);
        self.after(900..1100, Event::Discover { router: idx, boot });
    }

    /// Opens a stream.
    pub fn open(&mut self, subscriber: Subscriber) {
        let now = self.now;
        let Some(subscription) = self.subscription_mut(subscriber) else { return };
        subscription.attempt += 1;
        subscription.after = subscription.reader.open();
        subscription.opened = now;
        let subscriber = Subscriber { attempt: subscription.attempt, ..subscriber };
        self.transmit(Event::Dial(subscriber));
        self.at(now + SUMMARY_IDLE_MAX, Event::DialFails(subscriber, DialFailure::Silent));
    }

    /// Answers a router's request for a stream.
    pub fn dial_arrives(&mut self, subscriber: Subscriber) {
        let Some(subscription) = self.subscription_mut(subscriber) else { return };
        let (host, after) = (subscription.host, subscription.after);
        if self.cut_off.contains(&(subscriber.router, host)) {
            return;
        }
        let now = self.now;
        let worker = match &mut self.hosts[host].process {
            WorkerProcess::Down => return self.transmit(Event::DialFails(subscriber, DialFailure::Down)),
            WorkerProcess::Loading(_) => return self.transmit(Event::DialFails(subscriber, DialFailure::Loading)),
            WorkerProcess::Up(worker) => worker,
        };
        let start = worker.writer.start(after, now);
        self.broadcast(host);
        let boot = self.hosts[host].boot;
        let (label, seq) = (start.label(), self.boots[&key(boot)].n_updates());
        self.count(label);
        self.note(|| format!("router {} follows host {host} by {label} at {seq}", subscriber.router));
        let mut connection = Connection::new((subscriber, host), Stamp { seq, ..boot }, start.into_frames(), now);
        if self.is_hostile && self.rng.one_in(6) {
            connection.arm(self.rng.pick(&Damage::ALL));
        }
        let id = self.connect(connection);
        self.pump(id);
    }

    /// Sends a worker's frames to its subscribers.
    pub fn broadcast(&mut self, host: usize) {
        let WorkerProcess::Up(worker) = &mut self.hosts[host].process else { return };
        let frames = worker.writer.take_frames();
        let boot = self.hosts[host].boot;
        for frame in &frames {
            self.boots.get_mut(&key(boot)).expect("each process has its boot").send(frame);
        }
        let own = self.connections.iter().filter(|(_, connection)| connection.host == host);
        let ids: Vec<u64> =
            own.filter(|(_, connection)| connection.boot.is_same_boot(boot)).map(|(id, _)| *id).collect();
        for id in ids {
            let connection = self.connections.get_mut(&id).expect("the connection was just found");
            frames.iter().for_each(|frame| connection.send(frame, &mut self.rng));
            self.pump(id);
        }
        self.want_tick(host);
    }

    /// Schedules a connection's next arrival.
    pub fn pump(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.fill_wire(&mut self.rng);
        if !connection.is_busy() || std::mem::replace(&mut connection.is_scheduled, true) {
            return;
        }
        let (router, arrived) = (connection.subscriber.router, connection.arrived);
        let delay = if self.routers[router].is_slow { 60..200 } else { 0..3 };
        let delay = self.rng.ms(delay);
        let at = self.now.max(arrived) + delay;
        self.at(at, Event::Arrive(id));
    }

    /// Delivers the next bytes of a connection.
    pub fn arrive(&mut self, id: u64) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.is_scheduled = false;
        if self.cut_off.contains(&(connection.subscriber.router, connection.host)) {
            connection.is_scheduled = true;
            return self.after(20..60, Event::Arrive(id));
        }
        connection.arrived = now;
        let (subscriber, is_damaged, boot) = (connection.subscriber, connection.is_damaged, connection.boot);
        let arrival = connection.take(&mut self.rng);
        if self.subscription_mut(subscriber).is_none() {
            self.connections.remove(&id);
            return;
        }
        match arrival {
            Some(Arrival::Head) => self.opened(subscriber),
            Some(Arrival::Bytes(bytes)) => self.read(subscriber, &bytes, (is_damaged, boot)),
            Some(Arrival::End) => self.end_stream(subscriber, &StreamError::Ended),
            None => {}
        }
        self.pump(id);
    }

    fn opened(&mut self, subscriber: Subscriber) {
        let now = self.now;
        let Some(subscription) = self.subscription_mut(subscriber) else { return };
        subscription.stream = Some(SummaryStream::new(STREAM_LIMITS, now));
        subscription.silence_max = SUMMARY_IDLE_MAX;
        subscription.watch = watch(SUMMARY_IDLE_MAX, now);
        self.watch(subscriber);
        self.check_stale_report(subscriber);
    }

    /// Reads bytes of a stream.
    fn read(&mut self, subscriber: Subscriber, bytes: &[u8], (is_damaged, boot): (bool, Stamp)) {
        let now = self.now;
        let Some(Subscription { stream: Some(stream), .. }) = self.subscription_mut(subscriber) else { return };
        stream.push(bytes);
        loop {
            let Some(subscription) = self.subscription_mut(subscriber) else { return };
            let Subscription { stream: Some(stream), reader, .. } = subscription else { return };
            match stream.next(reader, now) {
                Ok(Some(effect)) => self.take_effect(subscriber, effect, (is_damaged, boot)),
                Ok(None) => break assert!(stream.n_waiting_bytes() < FRAME_BYTES_MAX + 4, "bytes wait without limit"),
                Err(fault) => return self.end_stream(subscriber, &StreamError::Fault(fault)),
            }
        }
        self.check_stale_report(subscriber);
    }

    fn take_effect(&mut self, subscriber: Subscriber, effect: FrameEffect, (is_damaged, boot): (bool, Stamp)) {
        let now = self.now;
        let Some(subscription) = self.subscription_mut(subscriber) else { return };
        subscription.last_frame = Some(now);
        if effect != FrameEffect::Partial {
            subscription.silence_max = (HEARTBEAT * 4).clamp(SUMMARY_IDLE_MIN, SUMMARY_IDLE_MAX);
        }
        subscription.watch = watch(subscription.silence_max, now);
        subscription.position = match (&effect, subscription.position) {
            (FrameEffect::Replace(_), _) | (FrameEffect::Update { .. }, _) if is_damaged => Shown::Damaged,
            (FrameEffect::Replace(view), _) => Shown::At(view.stamp),
            (FrameEffect::Update { .. }, Shown::At(stamp)) => Shown::At(Stamp { seq: stamp.seq + 1, ..stamp }),
            (_, position) => position,
        };
        let shows = (!matches!(effect, FrameEffect::Opened(_) | FrameEffect::Partial))
            .then_some((subscriber.worker, subscription.position));
        let declares = matches!(effect, FrameEffect::Opened(_)).then_some((subscriber.worker, boot));
        let Some(message) = subscriber::report(subscriber.worker, effect) else { return };
        let Some(router) = self.router_mut(subscriber.router, subscriber.boot) else { return };
        router.inbox.push_back(Report { message, shows, declares });
        self.want_track(subscriber.router);
    }

    /// Ends a stream and opens the next one after a pause.
    pub fn end_stream(&mut self, subscriber: Subscriber, error: &StreamError) {
        let (now, jitter) = (self.now, self.rng.unit());
        let Some(subscription) = self.subscription_mut(subscriber) else { return };
        let host = subscription.host;
        subscription.stream = None;
        let message = error.report(subscriber.worker, &mut subscription.reader);
        let pause = subscription.pause.after(now - subscription.opened, jitter);
        let mut shows = None;
        if matches!(message, TrackerMessage::Unreachable { .. }) {
            subscription.position = Shown::Nothing;
            shows = Some((subscriber.worker, Shown::Nothing));
        }
        // Bytes that still arrive on the old connection belong to an outdated attempt.
        subscription.attempt += 1;
        let next = Subscriber { attempt: subscription.attempt, ..subscriber };
        let Some(router) = self.router_mut(subscriber.router, subscriber.boot) else { return };
        router.inbox.push_back(Report { shows, ..Report::plain(message) });
        self.want_track(subscriber.router);
        self.count(error.label());
        self.note(|| format!("router {} loses host {host}: {error}", subscriber.router));
        self.connections.retain(|_, connection| connection.subscriber != subscriber);
        self.at(now + pause, Event::Open(next));
    }

    /// Records that a stream could not be opened.
    pub fn dial_fails(&mut self, subscriber: Subscriber, why: DialFailure) {
        let Some(subscription) = self.subscription_mut(subscriber) else { return };
        if subscription.stream.is_some() {
            return;
        }
        let host = subscription.host;
        let error = match (why, &self.hosts[host].process) {
            (DialFailure::Loading, WorkerProcess::Loading(build)) => {
                StreamError::Loading(Loading { names: build.declared().names, percent: 50 })
            }
            (DialFailure::Loading, _) => StreamError::Unready,
            // A refused connection counts as a loss, like silence.
            (DialFailure::Down, _) => StreamError::Idle(Duration::ZERO),
            (DialFailure::Silent, _) => StreamError::Idle(SUMMARY_IDLE_MAX),
        };
        self.end_stream(subscriber, &error);
    }

    fn watch(&mut self, subscriber: Subscriber) {
        let Some(subscription) = self.subscription_mut(subscriber) else { return };
        let due = subscription.watch.due();
        if !std::mem::replace(&mut subscription.is_watched, true) {
            self.at(due, Event::Silence(subscriber));
        }
    }

    /// Ends a stream that has been silent for too long.
    pub fn check_silence(&mut self, subscriber: Subscriber) {
        let now = self.now;
        let Some(router) = self.router_mut(subscriber.router, subscriber.boot) else { return };
        let Some(subscription) = router.subscriptions.get_mut(&subscriber.worker) else { return };
        subscription.is_watched = false;
        if subscription.stream.is_none() {
            return;
        }
        let subscriber = Subscriber { attempt: subscription.attempt, ..subscriber };
        if subscription.watch.due() <= now {
            let mut watch = subscription.watch;
            let silence = watch.check(now, |within| router.received_from_another(subscriber.worker, within, now));
            if let Some(silence) = silence {
                return self.end_stream(subscriber, &StreamError::Idle(silence));
            }
            if let Some(subscription) = self.subscription_mut(subscriber) {
                subscription.watch = watch;
            }
        }
        self.watch(subscriber);
    }

    /// Ends a stream whose view the tracker has reported as stale.
    fn check_stale_report(&mut self, subscriber: Subscriber) {
        let Some(subscription) = self.subscription_mut(subscriber) else { return };
        if subscription.stream.is_none() || !subscription.stale_reports.has_changed().unwrap_or(false) {
            return;
        }
        let report = *subscription.stale_reports.borrow_and_update();
        if let Some(report) = report {
            self.end_stream(subscriber, &StreamError::StaleReport(report));
        }
    }

    /// Schedules a router's tracker.
    pub fn want_track(&mut self, idx: usize) {
        let boot = self.routers[idx].boot;
        let Some(router) = self.router_mut(idx, boot) else { return };
        if !router.inbox.is_empty() && !std::mem::replace(&mut router.is_tracking, true) {
            self.after(0..3, Event::Track { router: idx, boot });
        }
    }

    /// Applies a router's reports, as its tracker's thread does.
    pub fn track(&mut self, idx: usize, boot: u64) {
        let now = self.now;
        let Some(router) = self.router_mut(idx, boot) else { return };
        router.is_tracking = false;
        let n_reports = router.inbox.len().min(BATCH_MAX);
        for Report { message, shows, declares } in router.inbox.drain(..n_reports) {
            if let Some((worker, shown)) = shows {
                router.shown.insert(worker, shown);
            }
            if let Some((worker, boot)) = declares {
                router.declared.insert(worker, boot);
            }
            router.tracker.take(message, now);
        }
        while router.tracker.is_busy() {
            router.tracker.take_in_slice(now);
        }
        router.tracker.publish(now);
        let subscribers: Vec<Subscriber> = router
            .subscriptions
            .iter()
            .map(|(worker, of)| Subscriber { router: idx, boot, worker: *worker, attempt: of.attempt })
            .collect();
        self.check_views(idx);
        subscribers.into_iter().for_each(|subscriber| self.check_stale_report(subscriber));
        self.fail_requests_at_lost_workers(idx);
        self.want_track(idx);
    }

    /// Returns the host of a worker in a router.
    pub fn host_of(&self, idx: usize, worker: WorkerIdx) -> Option<usize> {
        let router = self.routers[idx].router.as_deref()?;
        router.subscriptions.get(&worker).map(|subscription| subscription.host)
    }
}

/// Returns the key of a boot.
pub fn key(boot: Stamp) -> (u64, u64) {
    (boot.worker_uid.0, boot.boot_epoch)
}
