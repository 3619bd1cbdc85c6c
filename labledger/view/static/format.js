// Figures for people, written as labledger/text.py writes them, so that a figure reads the same on a
// terminal, in a report and here.
export const DASH = "–";

export const count = (number) => (number == null ? DASH : number.toLocaleString("en-US"));
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const percent = (share) => (share == null ? DASH : `${(100 * share).toFixed(1)}%`);
export const usd = (amount, digits = 2) =>
  amount == null ? DASH : `$${amount.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;

export function rounded(value) {
  if (value == null) return DASH;
  if (Number.isInteger(value)) return count(value);
  if (Math.abs(value) >= 10000) return count(Math.round(value));
  if (Math.abs(value) >= 100) return value.toLocaleString("en-US", { maximumFractionDigits: 2 });
  return String(Number(value.toPrecision(4)));
}

export function duration(ms) {
  if (ms == null) return DASH;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// An elapsed time that grows: 8s, 3:07, 2:10:00.
export function clockTime(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole}s`;
  const two = (value) => String(value).padStart(2, "0");
  const minutes = Math.floor(whole / 60) % 60;
  const hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

// Such as "3 min ago", for a time that lies behind.
export function ago(time, now = Date.now()) {
  const seconds = Math.max(0, (now - new Date(time)) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return counted(Math.floor(seconds / 86400), "day") + " ago";
}

// A time as text.py's date_and_time writes it.
const MONTHS = "January February March April May June July August September October November December".split(" ");
export function dateAndTime(text) {
  const time = new Date(text);
  return `${time.getUTCDate()} ${MONTHS[time.getUTCMonth()]} ${time.getUTCFullYear()}, ${time.toISOString().slice(11, 16)} UTC`;
}

// The time of day at which something happened, in UTC as everywhere in labledger.
export const timeOfDay = (time) => new Date(time).toISOString().slice(11, 19);
