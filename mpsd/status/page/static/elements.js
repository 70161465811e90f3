// Elements, filled with text and never with HTML: names of pods and commands are whoever's.

const at = (id) => document.getElementById(id);

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** mpsd's own sentences, and names: they are in no language but their own. */
function own(element, text) {
  element.lang = "en";
  say(element, text);
}

/** Makes the children of `parent` those of `items`, keeping each element that is there already. */
function keyed(parent, items, make, update, key = (item) => item.id) {
  const before = parent.kept ?? new Map();
  const kept = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const found = before.get(key(item)) ?? make(item);
    kept.set(key(item), found);
    if (found === place) place = place.nextSibling;
    else parent.insertBefore(found, place);
    if (found.item !== item || found.epoch !== epoch) {
      update(found, item);
      found.item = item;
      found.epoch = epoch;
    }
  }
  for (const [name, element] of before) if (!kept.has(name)) element.remove();
  parent.kept = kept;
}
