#include "tools/daemon/sessions/sessions.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <span>

#include "fusefs/session_mount.h"
#include "policy/random_bits.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/sessions/session_metadata.h"

namespace okcvm::daemon {
namespace {

constexpr std::string_view kRootAgent = "root";
constexpr std::size_t kMaxAgentName = 128;

Result<void> check_agent_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == ':' || c == '@';
  };
  if (name.empty() || name.size() > kMaxAgentName || !std::all_of(name.begin(), name.end(), allowed))
    return fail(Code::kInvalidRequest, "agent: 1 to 128 of letters, digits and . _ - : @ are needed");
  return {};
}

constexpr std::size_t kMostGone = 10'000;  // deleted ids that are remembered
constexpr int kTriesForAgent = 10;         // while others make and remove its session

/// What only the daemon, or the host, may write to.
std::vector<std::filesystem::path> own_trees(const SessionsConfig& config) {
  auto trees = config.skills_dirs;
  trees.push_back(config.state_dir);
  trees.push_back(config.run_dir);
  return trees;
}

}  // namespace

Sessions::Sessions(SessionsConfig config, Backends backends, std::unique_ptr<Registry> registry,
                   EventHub& events)
    : config_(std::move(config)),
      backends_(std::move(backends)),
      registry_(std::move(registry)),
      events_(events),
      skills_(config_.skills_dirs),
      workdirs_(config_.workdir_allow_roots, own_trees(config_), config_.mount_root) {}
Sessions::~Sessions() = default;

std::filesystem::path Sessions::mount_point_of(const SessionId& id) const {
  return config_.mount_root / ("okcvm-" + id.text());
}

// -- The map

SessionPointer Sessions::exact(const Peer& peer, std::string_view id) const {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || !peer.may_use(found->second->owner())) return nullptr;
  return found->second;
}

std::vector<SessionPointer> Sessions::all() const {
  const MutexLock lock(mutex_);
  std::vector<SessionPointer> sessions;
  for (const auto& [id, session] : sessions_) sessions.push_back(session);
  return sessions;
}

std::size_t Sessions::count() const {
  const MutexLock lock(mutex_);
  return sessions_.size();
}

Result<SessionPointer> Sessions::find(const Peer& peer, std::string_view id_or_prefix) const {
  if (auto valid = SessionId::parse(id_or_prefix); !valid) return fail(valid.error());
  if (auto session = exact(peer, id_or_prefix)) return session;
  const MutexLock lock(mutex_);
  if (const auto gone = gone_.find(id_or_prefix); gone != gone_.end() && peer.may_use(gone->second))
    return fail(Code::kNotFound,
                "the session with this id was deleted; to mean another, give more of its id");
  SessionPointer match;
  for (auto entry = sessions_.lower_bound(id_or_prefix);
       entry != sessions_.end() && entry->first.starts_with(id_or_prefix); ++entry) {
    if (!peer.may_use(entry->second->owner())) continue;
    if (match) return fail(Code::kAmbiguousPrefix, "several sessions begin with this: give more of the id");
    match = entry->second;
  }
  if (!match) return no_such_session();
  return match;
}

std::vector<SessionPointer> Sessions::list(const Peer& peer, std::string_view prefix) const {
  std::vector<std::pair<std::int64_t, SessionPointer>> found;
  for (const auto& session : all())
    if (peer.may_use(session->owner()) && session->id().text().starts_with(prefix))
      found.emplace_back(session->last_used(), session);
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<SessionPointer> sessions;
  sessions.reserve(found.size());
  for (auto& [used, session] : found) sessions.push_back(std::move(session));
  return sessions;
}

std::vector<SessionPointer> Sessions::list_after(const Peer& peer, std::string_view prefix,
                                                 std::string_view after) const {
  const MutexLock lock(mutex_);
  std::vector<SessionPointer> sessions;
  for (auto entry = sessions_.upper_bound(after); entry != sessions_.end(); ++entry)
    if (entry->first.starts_with(prefix) && peer.may_use(entry->second->owner()))
      sessions.push_back(entry->second);
  return sessions;
}

Result<Sessions::Entry> Sessions::make_entry(SessionRecord record) {
  auto session = std::make_shared<Session>(std::move(record));
  auto pass = session->gate().alone();
  if (!pass) return fail(pass.error());
  const MutexLock lock(mutex_);
  if (sessions_.size() >= config_.max_sessions)
    return fail(Code::kQuotaExceeded,
                "there are as many sessions as --max-sessions allows: delete or clean some");
  const auto [there, is_new] = sessions_.emplace(session->id().text(), session);
  if (!is_new && there->second->record().state == SessionPhase::kMaking)
    return fail(Code::kBusy, "a session with this id is being made, or taken back: ask again in a moment");
  if (!is_new) return fail(Code::kAlreadyExists, "a session with this id exists: choose another id");
  if (gone_.erase(session->id().text())) std::erase(gone_first_, session->id().text());
  return Entry{std::move(session), std::move(*pass)};
}

void Sessions::drop_entry(const SessionId& id, const std::function<void()>& last) {
  for (const auto until : {Affected::Until::kMounted, Affected::Until::kRestored}) forget_affected(id, until);
  const MutexLock lock(mutex_);
  sessions_.erase(id.text());
  if (last) last();
}

void Sessions::note_gone(const Session& session) {
  const MutexLock lock(mutex_);
  gone_.insert_or_assign(session.id().text(), session.owner());
  gone_first_.push_back(session.id().text());
  if (gone_first_.size() <= kMostGone) return;
  gone_.erase(gone_first_.front());
  gone_first_.pop_front();
}

Result<void> Sessions::save(Session& session, SessionRecord record) {
  record.last_used = std::max(record.last_used, session.last_used());
  if (auto saved = registry_->update(record); !saved) return saved;
  session.set_record(std::move(record));
  return {};
}

void Sessions::tell(const Session& session, std::string_view type, std::string_view action) const {
  events_.publish(type, session.id().text(), session.owner(), {EventHub::text("action", action)});
}

// -- Creation

bool Sessions::is_known(const SessionId& id) const {
  const MutexLock lock(mutex_);
  return sessions_.contains(id.text());
}

/// Files of a session that the registry does not know, as it is a new one, or a copy from before: they may be
/// somebody else's, and a new session starts empty.
bool Sessions::has_files(const SessionId& id) const {
  const auto places = store_config(SessionRecord(id));
  return ::access(places.workspace.c_str(), F_OK) == 0 || ::access(places.repository.c_str(), F_OK) == 0;
}

Result<SessionId> Sessions::choose_id(const std::optional<std::string>& wanted,
                                      const std::optional<std::string>& agent) const {
  if (wanted) {
    auto id = SessionId::parse(*wanted);
    if (id && !is_known(*id) && has_files(*id))
      return fail(Code::kAlreadyExists,
                  "files of a session that the registry does not know are kept under this id: choose "
                  "another id");
    return id;
  }
  const auto is_free = [&](const SessionId& id) { return !is_known(id) && !has_files(id); };
  if (agent)
    if (auto named = SessionId::parse(*agent); named && is_free(*named)) return named;
  for (;;)
    if (auto id = SessionId::from_random(static_cast<std::uint32_t>(random_bits())); is_free(id)) return id;
}

Result<std::optional<SessionPointer>> Sessions::existing_agent(const CreateRequest& request, uid_t owner) {
  const auto parent_name = request.parent_agent.value_or(std::string(kRootAgent));
  auto found = registry_->agent(owner, *request.agent);
  if (!found) return fail(found.error());
  const bool is_known = found->has_value();
  if (is_known && (*found)->parent != parent_name)
    return fail(Code::kAlreadyExists, "agent: it exists with another parent: choose another name");
  if (!is_known && parent_name == kRootAgent) return std::nullopt;
  if (!is_known) found = registry_->agent(owner, parent_name);
  if (!found) return fail(found.error());
  if (!*found) return fail(Code::kNotFound, "parent_agent: no such agent: create it first");
  auto session = exact(Peer::of_user(owner), (*found)->session.text());
  if (!session) return no_such_session();
  // One that is being made is waited for.
  if (const auto live = session->mount(); !live || !live->is_in_place())
    if (auto mounted = mount(*session); !mounted) return fail(mounted.error());
  // While it is shared it is not removed.
  const auto pass = session->gate().share();
  if (!pass) return fail(pass.error());
  session->touch();
  if (!is_known)
    if (auto added = registry_->add_agent({*request.agent, parent_name, owner, session->id()}); !added)
      return fail(added.error());
  return session;
}

Result<Sessions::Created> Sessions::create(const Peer& peer, CreateRequest request) {
  const auto started = std::chrono::steady_clock::now();
  auto created = create_or_find(peer, std::move(request));
  if (!created || created->is_new)
    work_.created(std::chrono::steady_clock::now() - started, created ? nullptr : &created.error());
  return created;
}

Result<Sessions::Created> Sessions::create_or_find(const Peer& peer, CreateRequest request) {
  const uid_t uid = request.owner_uid.value_or(peer.uid);
  if (!peer.may_use(uid)) return fail(Code::kForbidden, "owner: only root may create sessions for others");
  gid_t gid = peer.gid;
  if (request.owner_gid)
    gid = *request.owner_gid;
  else if (uid != peer.uid)
    gid = host_user(uid).value_or(HostUser{{}, {}, static_cast<gid_t>(uid), {}}).gid;
  if (!peer.is_root() && !peer.is_in(gid))
    return fail(Code::kForbidden, "owner.gid: it is not one of your groups");

  if (request.parent_agent && !request.agent)
    return fail(Code::kInvalidRequest, "parent_agent: it needs an agent as well");
  if (request.agent) {
    if (auto valid = check_agent_name(*request.agent); !valid) return fail(valid.error());
    if (*request.agent == kRootAgent) return fail(Code::kInvalidRequest, "agent: root itself has no session");
    for (int tries = 1;; ++tries) {
      auto created = create_for_agent(request, uid, gid);
      const bool may_be_passing = !created && (created.error().code == Code::kAlreadyExists ||
                                               created.error().code == Code::kNotFound);
      if (!may_be_passing || tries == kTriesForAgent) return created;
      wait_for_rivals(request, uid);
    }
  }
  return create_new(std::move(request), uid, gid);
}

/// Somebody else may be making or removing the agent's session: once that is done, it is looked up anew.
void Sessions::wait_for_rivals(const CreateRequest& request, uid_t owner) const {
  const auto known = registry_->agent(owner, *request.agent);
  const auto of_agent = known && *known ? (*known)->session.text() : *request.agent;
  for (const auto& id : {of_agent, request.id.value_or(*request.agent)})
    if (const auto other = exact(Peer::of_user(owner), id)) static_cast<void>(other->gate().share());
}

Result<Sessions::Created> Sessions::create_for_agent(const CreateRequest& request, uid_t uid, gid_t gid) {
  auto existing = existing_agent(request, uid);
  if (!existing) return fail(existing.error());
  if (*existing) return Created{**existing, false};
  return create_new(request, uid, gid);
}

Result<Sessions::Created> Sessions::create_new(CreateRequest request, uid_t uid, gid_t gid) {
  for (const auto& skill : request.skills) {
    auto name = Name::parse(skill);
    if (!name) return fail(name.error());
    if (auto opened = skills_.open(*name); !opened) return fail(opened.error());
  }
  auto id = choose_id(request.id, request.agent);
  if (!id) return fail(id.error());
  SessionRecord record(*id);
  record.owner_uid = uid;
  record.owner_gid = gid;
  record.root_mode = request.mode;
  record.agent = request.agent;
  record.created_at = time_now();
  record.last_used = to_milliseconds(record.created_at);
  record.labels = std::move(request.labels);
  record.skills = std::move(request.skills);
  std::sort(record.skills.begin(), record.skills.end());
  record.skills.erase(std::unique(record.skills.begin(), record.skills.end()), record.skills.end());
  const auto binding = bind_workdir(record, request.workdir);

  auto entry = make_entry(record);
  if (!entry) return fail(entry.error());
  auto& session = *entry->session;
  bool is_inserted = false;
  const auto made = [&]() -> Result<void> {
    std::optional<AgentRecord> agent;
    if (request.agent) agent = AgentRecord{*request.agent, std::string(kRootAgent), uid, *id};
    if (auto inserted = registry_->insert(record, agent); !inserted) return inserted;
    is_inserted = true;
    return attach(session);
  }();
  if (!made) {
    end_creation(session, is_inserted ? registry_->remove(*id) : Result<void>());
    return fail(made.error());
  }
  remember_workdir(session, binding);
  tell(session, "session", "created");
  return Created{entry->session, true};
}

void Sessions::end_creation(Session& session, const Result<void>& removed) {
  if (removed) {
    drop_entry(session.id());
    return session.gate().close();
  }
  log_error("session {}: its creation failed, and what was made of it cannot be removed: {}; delete it",
            session.id().text(), removed.error().message);
  auto record = session.record();
  record.state = SessionPhase::kDeleting;
  session.set_record(std::move(record));
}

Result<void> Sessions::change_labels(Session& session, const std::function<Result<Labels>(Labels)>& change) {
  const auto pass = session.gate().alone();
  if (!pass) return fail(pass.error());
  auto record = session.record();
  auto labels = change(std::move(record.labels));
  if (!labels) return fail(labels.error());
  record.labels = std::move(*labels);
  const auto metadata = metadata_file_of(record);
  if (auto saved = save(session, std::move(record)); !saved) return saved;
  if (const auto mount = session.mount()) mount->set_metadata(metadata);
  return {};
}

// -- Checkpoints

Result<void> Sessions::knows_parent(const Session& session, const Checkpoint& checkpoint) {
  if (checkpoint.parent)
    if (auto parent = registry_->checkpoint(session.id(), *checkpoint.parent); !parent)
      return fail(parent.error().code, "parent_id: " + parent.error().message);
  return {};
}

Result<void> Sessions::can_add_checkpoint(const Session& session, const Checkpoint& checkpoint) {
  if (auto known = knows_parent(session, checkpoint); !known) return known;
  return registry_->can_add_checkpoint(session.id(), checkpoint.id, config_.max_checkpoints);
}

Result<void> Sessions::add_checkpoint(Session& session, Checkpoint& checkpoint) {
  const auto pass = session.gate().alone();
  if (!pass) return fail(pass.error());
  auto record = session.record();
  if (auto known = knows_parent(session, checkpoint); !known) return known;
  if (!checkpoint.parent) checkpoint.parent = record.head_checkpoint;
  if (auto added = registry_->add_checkpoint(session.id(), checkpoint, config_.max_checkpoints); !added)
    return added;
  record.head_checkpoint = checkpoint.id;
  session.set_record(std::move(record));
  return {};
}

Result<void> Sessions::set_head(Session& session, const std::string& checkpoint) {
  const auto pass = session.gate().alone();
  if (!pass) return fail(pass.error());
  // A reset may have come before.
  if (auto found = registry_->checkpoint(session.id(), checkpoint); !found) return fail(found.error());
  auto record = session.record();
  record.head_checkpoint = checkpoint;
  return save(session, std::move(record));
}

// -- Agents

namespace {

using AgentRows = std::span<const AgentRecord>;

/// Those of one session, each before its children.
std::vector<Sessions::AgentView> tree_of(AgentRows agents) {
  std::multimap<std::string_view, const AgentRecord*> children;
  for (const auto& agent : agents) children.emplace(agent.parent, &agent);
  std::vector<Sessions::AgentView> tree, open;
  const auto open_children = [&](std::string_view parent, std::size_t depth) {
    const auto [first, last] = children.equal_range(parent);
    for (auto child = last; child != first;) open.push_back({*(--child)->second, depth});
  };
  open_children(kRootAgent, 1);
  while (!open.empty() && tree.size() < agents.size()) {
    tree.push_back(std::move(open.back()));
    open.pop_back();
    open_children(tree.back().agent.agent, tree.back().depth + 1);
  }
  return tree;
}

}  // namespace

Result<Sessions::AgentPage> Sessions::agents(const Peer& peer, const std::string& from,
                                             const std::string& after, std::size_t limit) {
  const auto enough = limit + Registry::kMostAgents;  // as many of the first session may have been told
  auto known = registry_->agents(peer.is_root() ? std::nullopt : std::optional(peer.uid), from, enough);
  if (!known) return fail(known.error());
  AgentPage page;
  page.truncated = known->truncated;
  for (AgentRows left = known->list; !left.empty();) {
    const auto end = std::find_if(left.begin(), left.end(),
                                  [&](const auto& agent) { return agent.session != left.front().session; });
    const auto tree = tree_of({left.begin(), end});
    left = {end, left.end()};
    auto next = tree.begin();
    if (!tree.empty() && tree.front().agent.session.text() == from) {
      const auto last =
          std::find_if(next, tree.end(), [&](const auto& view) { return view.agent.agent == after; });
      if (last != tree.end()) next = last + 1;
    }
    for (; next != tree.end(); ++next) {
      page.truncated = page.truncated || page.agents.size() == limit;
      if (page.agents.size() == limit) return page;
      page.agents.push_back(*next);
    }
  }
  return page;
}

Result<Sessions::AgentFound> Sessions::agent(const Peer& peer, const std::string& name,
                                             std::optional<uid_t> owner) {
  if (owner && !peer.may_use(*owner)) return fail(Code::kNotFound, "no such agent: okcvm agents lists them");
  if (!peer.is_root()) owner = peer.uid;
  auto match = owner ? registry_->agent(*owner, name) : Result<std::optional<AgentRecord>>(std::nullopt);
  if (!match) return fail(match.error());
  if (!owner) {
    auto all = registry_->agents_named(name);
    if (!all) return fail(all.error());
    if (all->size() > 1)
      return fail(Code::kAmbiguousPrefix,
                  "several users have an agent of this name: say whose, by owner=UID");
    if (!all->empty()) *match = std::move(all->front());
  }
  if (!*match) return fail(Code::kNotFound, "no such agent: okcvm agents lists them");
  AgentFound found{**match, {}, exact(peer, (*match)->session.text())};
  if (!found.session) return no_such_session();
  auto children = registry_->children_of(**match);
  if (!children) return fail(children.error());
  found.children = std::move(*children);
  return found;
}

}  // namespace okcvm::daemon
