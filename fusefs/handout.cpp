#include "fusefs/handout.h"

#include <utility>

#include "fusefs/operations.h"

namespace okcvm::fusefs {
namespace {

thread_local Handout* the_current = nullptr;

}  // namespace

Handout::Handout(SessionState::Change change, Operations& operations)
    : change_(std::move(change)), operations_(operations), former_(change_.references()) {
  the_current = this;
}

Handout::~Handout() {
  the_current = nullptr;
}

void Handout::settle() {
  Handout* const self = std::exchange(the_current, nullptr);  // not to note the same twice
  if (!self) return;
  for (; self->former_ > 0; --self->former_)
    if (const NodeId id{self->change_.reference(self->former_ - 1)}; id.value) {
      self->change_.set_reference(self->former_ - 1, 0);  // first: counts may be left too high, never too low
      self->operations_.forget(id, 1);
    }
  the_current = self;
}

void Handout::taken(NodeId id) {
  if (the_current) the_current->change_.add_reference(id.value);
}

void Handout::given_back(NodeId id) {
  if (!the_current) return;
  auto& change = the_current->change_;
  for (std::uint32_t i = change.references(); i-- > 0;)
    if (change.reference(i) == id.value) return change.set_reference(i, 0);
}

bool Handout::is_full() {
  return the_current && the_current->change_.references() >= SessionState::kReferences;
}

void Handout::keep(NodeId id) {
  given_back(id);
  taken(id);
}

}  // namespace okcvm::fusefs
