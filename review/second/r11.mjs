import {simulate} from './build/test/instances/simulator.js'
// same with isReal and shared client key
const L=(name,r)=>({name,rate:r/1000,capacity:Math.max(20,4*r)})
for(const n of [2,6])for(const [jitter,depth] of [[0,10],[.3,10],[2,10],[.3,2]]){const rates=[1000,6,5]
 const sim=await simulate({stack:rates.map((r,i)=>L('b'+i,r)),count:n,isReal:true,jitter,sources:Array.from({length:n},(_,i)=>({instance:i,keys:rates.map((r,k)=>'t'+k),load:{kind:'saturated',depth}}))})
 await sim.run(25000);console.log('sim, shared keys, isReal n',n,'jitter',jitter,'depth',depth,sim.releases.length,'of 125',Array.from({length:n},(_,i)=>sim.releases.filter(r=>r.source.instance===i).length))}
