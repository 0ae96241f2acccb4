#pragma once

// How a request is taken up and answered: the frame of every callback in dispatch.cpp.

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "fusefs/channel.h"
#include "fusefs/dispatch.h"
#include "fusefs/handout.h"
#include "fusefs/replies.h"

namespace okcvm::fusefs {

// A lease that is not given up is taken after 45 s (/proc/sys/fs/lease-break-time).
inline constexpr std::chrono::milliseconds kFirstLookAtLease{1};
inline constexpr std::chrono::milliseconds kLongestBetweenLooksAtLease{50};

inline Dispatcher& dispatcher_of(fuse_req_t request) {
  return *static_cast<Dispatcher*>(fuse_req_userdata(request));
}

/// Who asks; of a request that the kernel resent, also whether a daemon that died may have done it already.
inline Request asker(fuse_req_t request) {
  const fuse_ctx* context = fuse_req_ctx(request);
  Request who;
  who.uid = context->uid;
  who.gid = context->gid;
  who.pid = context->pid;
  const auto& current = Channel::current();
  who.unique = current.unique();
  if (!current.resent()) return who;
  const auto noted = dispatcher_of(request).state.unfinished(who.unique);
  who.may_have_run = noted.has_value();
  who.noted = noted.value_or(Fact());
  return who;
}

/// For calls in which the kernel does not say so itself: only root may keep a file's set-id bits in writing.
inline Request writer(fuse_req_t request) {
  Request who = asker(request);
  who.kill_privileges = true;
  who.unless_capable = true;
  return who;
}

/// The kernel may drop the request while we answer (its program was killed): then what the reply would have
/// handed over is taken back. With the reply the request is gone, too, for libfuse frees it.
inline constexpr int kNobodyListens = -ENOENT;

/// Of a request that stays unanswered when the daemon ends: the next one is sent it again.
inline constexpr int kLeftToNextDaemon = -1;

/// Does what nobody hears the outcome of, as the kernel does not ask or was answered already.
template <typename Body>
void do_unheard(Body body) noexcept try {
  body();
} catch (...) {
}

/// What an operation answers; an exception is an error, too.
template <typename Body>
auto outcome_of(Body& body) noexcept -> decltype(body()) try {
  return body();
} catch (const std::bad_alloc&) {
  return fail_errno(ENOMEM);
} catch (...) {
  return fail_errno(EIO);
}

/// The zone of the node that the request is about.
inline Zone zone_of(fuse_req_t request) {
  auto& current = Channel::current();
  if (!current.zone) current.zone = dispatcher_of(request).operations.zone_of(NodeId{current.header->nodeid});
  return *current.zone;
}

/// Where a file system of the host's may be asked, which answers when it likes: the root shows the workdir.
inline Channel* channel_if_may_wait(fuse_req_t request) {
  const Zone zone = zone_of(request);
  return zone == Zone::kWorkdir || zone == Zone::kRoot ? &dispatcher_of(request).channel : nullptr;
}

/// Runs an operation and replies. What is done after that must not need the node: the kernel may drop it at
/// once.
template <typename Body, typename Reply>
void answer(fuse_req_t request, Body body, Reply reply) noexcept {
  const auto waiting = Channel::Waiting::perhaps(channel_if_may_wait(request));
  auto result = outcome_of(body);
  do_unheard(&Handout::settle);
  if (result)
    do_unheard([&] { reply(*result); });
  else if (result.error().errno_value == kLeftToNextDaemon)
    fuse_reply_none(request);
  else
    fuse_reply_err(request, result.error().errno_value);
}

template <typename Body>
void answer_done(fuse_req_t request, Body body) noexcept {
  const auto waiting = Channel::Waiting::perhaps(channel_if_may_wait(request));
  const Result<void> result = outcome_of(body);
  fuse_reply_err(request, result ? 0 : result.error().errno_value);
}

/// Marks a change as begun until it is answered, so that the next daemon knows if this one dies in between.
inline SessionState::Change begin_change(fuse_req_t request, Fact fact = {}) {
  return dispatcher_of(request).state.start(Channel::current().unique(), fact);
}

/// As the above, but while the zone is held back for a snapshot or a restore, it waits.
template <typename Body>
auto gated_in(Zone zone, fuse_req_t request, Body body) {
  return [zone, request, body = std::move(body)] {
    auto& dispatcher = dispatcher_of(request);
    Gate::Pass pass(dispatcher.gates.to(zone));
    return body(dispatcher.operations);
  };
}

template <typename Body>
auto gated(fuse_req_t request, Body body) {
  return gated_in(zone_of(request), request, std::move(body));
}

/// As the above; but while somebody on the host holds a lease on the file, it waits outside, as open(2) with
/// these flags does. It has begun a `change` (if any) with this fact while it tries alone: there are fewer
/// records of changes than requests that may wait.
template <typename Body>
auto gated_after_leases(fuse_req_t request, int flags, std::optional<SessionState::Change>* change, Fact fact,
                        Body body) {
  return [request, flags, change, fact, try_once = gated(request, std::move(body))] {
    const auto is_leased = [flags](const auto& result) {
      return !result && result.error().errno_value == EWOULDBLOCK && !(flags & O_NONBLOCK);
    };
    const auto act = [&] {
      if (change && !*change) change->emplace(begin_change(request, fact));
      auto tried = try_once();
      // What a dead daemon had begun stays so.
      if (change && is_leased(tried) && !Channel::current().resent()) change->reset();
      return tried;
    };
    auto result = act();
    if (!is_leased(result)) return result;
    Channel& channel = dispatcher_of(request).channel;
    const Channel::Waiting waiting(channel);
    for (auto pause = kFirstLookAtLease; is_leased(result); result = act()) {
      if (channel.is_stopped()) return decltype(result)(fail_errno(kLeftToNextDaemon));
      if (fuse_req_interrupted(request)) return decltype(result)(fail_errno(EINTR));
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestBetweenLooksAtLease);
    }
    return result;
  };
}

/// For what hands out references on nodes, until it is answered.
inline Handout hand_out(fuse_req_t request) {
  return {begin_change(request), dispatcher_of(request).operations};
}

/// For a change of which more is noted on the way.
inline Request asker(fuse_req_t request, const SessionState::Change& change) {
  Request who = asker(request);
  who.fact = change.fact();
  return who;
}

inline NodeId node(fuse_ino_t number) {
  return NodeId{number};
}

inline auto reply_entry(fuse_req_t request) {
  return [request, &operations = dispatcher_of(request).operations](const Entry& entry) {
    const auto out = parameters_of(entry);
    if (fuse_reply_entry(request, &out) == kNobodyListens && entry.id.value) operations.forget(entry.id, 1);
  };
}

inline auto reply_removed(fuse_req_t request) {
  return [request, &operations = dispatcher_of(request).operations](Operations::Nameless inode) {
    fuse_reply_err(request, 0);
    operations.let_go(inode);
  };
}

inline auto reply_attributes(fuse_req_t request) {
  return [request](const Entry& entry) {
    fuse_reply_attr(request, &entry.attributes, entry.attributes_seconds);
  };
}

}  // namespace okcvm::fusefs
