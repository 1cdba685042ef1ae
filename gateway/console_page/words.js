// Formats numbers and times for people.

/** Format a duration in milliseconds with its two largest units. */
export function span(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 1) return "under 1 s";
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  const [name, size] = units[first];
  const whole = Math.floor(seconds / size);
  const next = units[first + 1];
  const rest = next ? Math.floor((seconds - whole * size) / next[1]) : 0;
  return rest ? `${whole} ${name} ${rest} ${next[0]}` : `${whole} ${name}`;
}

/** Format how long ago a time was; empty for null. */
export function ago(ms) {
  return ms ? `${span(Date.now() - ms)} ago` : "";
}

export function count(number) {
  return Number(number).toLocaleString("en");
}

/** Format a number with its noun, such as `1 row` or `2,000 rows`. */
export function counted(number, noun) {
  return `${count(number)} ${noun}${Number(number) === 1 ? "" : "s"}`;
}

export function bytes(number) {
  const power = Math.min(3, Math.max(0, Math.floor(Math.log2(number || 1) / 10)));
  return `${(number / 1024 ** power).toFixed(power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB"][power]}`;
}

/** Return the wall time of an hlc in milliseconds. */
export function wall(hlc) {
  return Number(hlc) / 65_536;
}
