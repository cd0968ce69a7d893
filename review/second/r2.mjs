import {simulate} from './build/test/instances/simulator.js'
import {Claims} from './build/src/core/shared/slot-claims.js'
const L=(name,r,c)=>({name,rate:r/1000,capacity:c})
const [ra,rb,d,from,to]=process.argv.slice(2).map(Number)
const sim=await simulate({stack:[L('own',ra,4*ra),L('all',rb,4*rb)],count:1,sources:[{instance:0,keys:['i','all'],load:{kind:'saturated',depth:60}}],distance:()=>d})
const st=sim.connections[0].store
const log=(...a)=>{if(globalThis.T>=from&&globalThis.T<to)console.log(T.toFixed(1),...a)}
globalThis.T=0
for(const v of ['claim','lease','giveBack','admit']){const f=st[v];st[v]=(q)=>{const at=globalThis.T;const b=JSON.stringify({...q,stack:q.stack?.map(s=>s.limits.name),bucket:q.bucket?.limits.name,instance:undefined,slot:q.slot&&{at:q.slot.at}});if(v!=='admit')log('>',v,b);const p=f(q);p.then(a=>{if(v!=='admit')log('<',v,'of',at.toFixed(1),JSON.stringify(a))});return p}}
for(let t=0;t<to;t+=.5){globalThis.T=t;await sim.run(t)}
console.log(sim.releases.map(r=>r.at.toFixed(0)).join(' '))
