/** V8 copies shorter parts of a string. A longer one refers to the whole. */
const LEAST_PART = 13

/** A copy for keeps. The text may be part of a long one, such as the head of a request, which would be kept with it. */
export function ownText(text: string): string {
  return text.length < LEAST_PART ? text : text.split('').join('')
}
